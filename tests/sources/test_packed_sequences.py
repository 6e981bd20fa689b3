"""Documents packed into rows: every token once, with its label, position and piece, and little padding."""

import itertools
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import DataLoader, PackedSequences


def split(row, length):
    """Return the tokens, labels and positions of each piece of a row, padding last."""
    cuts = row["cu_seqlens"].tolist()
    assert (cuts[0], cuts[-1]) == (0, length)
    assert row["cu_seqlens"].dtype == row["position_ids"].dtype == np.int32
    assert row["labels"].dtype == np.int64
    return [
        [row[name][begin:end].tolist() for name in ("tokens", "labels", "position_ids")]
        for begin, end in itertools.pairwise(cuts)
        if begin < end
    ]


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    length=st.integers(1, 12),
    longest=st.none() | st.integers(1, 15),
    window=st.integers(1, 9),
    seed=st.none() | st.integers(0, 2**64 - 1),
)
def test_every_token_is_there_once_with_its_label(sizes, length, longest, window, seed):
    tokens = np.arange(sum(sizes), dtype=np.uint16)
    bounds = np.cumsum([0, *sizes])
    packed = partial(PackedSequences, tokens, length, longest=longest, window=window, padding=999, seed=seed)
    if not len(tokens):
        with pytest.raises(ValueError, match="no tokens to pack: every document is empty"):
            packed(documents=bounds[:-1])
        return
    rows, most = packed(documents=bounds[:-1]), min(longest or length, length)
    found = []
    for row in rows:
        assert {name: array.shape for name, array in row.items()} == {
            "tokens": (length,),
            "labels": (length,),
            "position_ids": (length,),
            "cu_seqlens": rows[0]["cu_seqlens"].shape,
        }
        for number, (piece, labels, positions) in enumerate(split(row, length)):
            assert positions == list(range(len(piece)))
            if piece[0] == 999:  # no document is as long
                assert (set(piece), set(labels)) == ({999}, {-100})
                assert number
                continue
            assert len(piece) <= most
            assert piece == list(range(piece[0], piece[-1] + 1))
            ends = piece[-1] + 1 in bounds
            assert labels == [*piece[1:], -100 if ends else piece[-1] + 1]
            # Only the last piece of a document may be shorter.
            assert ends or len(piece) == most
            assert piece[0] in bounds or (piece[0] - bounds[bounds <= piece[0]].max()) % most == 0
            found += piece
    assert sorted(found) == tokens.tolist()
    assert rows.fill == pytest.approx(len(tokens) / (len(rows) * length))
    again = pickle.loads(pickle.dumps(packed(documents=bounds[:-1])))
    assert all((again[n]["tokens"] == rows[n]["tokens"]).all() for n in range(len(rows)))


LENGTHS = np.random.default_rng(0).lognormal(5, 1.2, 3000).astype(int) + 1
STARTS = np.cumsum(LENGTHS) - LENGTHS
TOKENS = np.random.default_rng(1).integers(1, 50_000, LENGTHS.sum()).astype(np.uint16)


@pytest.mark.parametrize("length", [512, 2048])
def test_rows_are_full(length):
    rows = PackedSequences(TOKENS, length, documents=STARTS)
    assert rows.fill > 0.98
    assert f"{len(rows):,} rows of {length:,} tokens, {rows.fill:.1%} full; 3,000 documents" in repr(rows)
    # Documents that follow one another share rows; packed one by one, they fill fewer.
    assert PackedSequences(TOKENS, length, documents=STARTS, window=1).fill < 0.9


def test_a_seed_packs_other_documents_together():
    make_rows = partial(PackedSequences, TOKENS, 512, documents=STARTS, window=100)
    first, again, other = make_rows(seed=1), make_rows(seed=1), make_rows(seed=2)
    assert len(first) == len(again)
    assert all((first[n]["tokens"] == again[n]["tokens"]).all() for n in range(len(first)))
    assert not (first[0]["tokens"] == other[0]["tokens"]).all()
    assert not (first[0]["tokens"] == make_rows()[0]["tokens"]).all()


def test_a_row_is_a_step_without_a_batch_dimension():
    rows = PackedSequences(range(1, 20), 6, documents=[3, 8, 9, 15], longest=4)
    steps = list(DataLoader(rows, places="cpu", batch_size=None))
    assert [step["cu_seqlens"].tolist() for step in steps] == [row["cu_seqlens"].tolist() for row in rows]
    assert all(step["tokens"].shape == (6,) for step in steps)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "problem"),
    [
        ((range(4), 0), {"documents": []}, ValueError, "length must be an integer of 1 or more"),
        ((range(4), 2), {"documents": [], "longest": 0}, ValueError, "longest must be"),
        ((range(4), 2), {"documents": [], "window": 0}, ValueError, "window must be"),
        ((range(4), 2), {"documents": [], "seed": -1}, ValueError, "seed must be"),
        (
            (range(4), 2),
            {"documents": [3, 1]},
            ValueError,
            "documents must be ascending positions from 0 to 4",
        ),
        ((range(4), 2), {"documents": [0.5]}, TypeError, "documents must be a list of integers"),
        ((["a"], 2), {"documents": []}, TypeError, "tokens must be one dimension of numbers"),
        ((np.arange(4, dtype="u2"), 2), {"documents": [], "padding": -1}, ValueError, "of uint16, got -1"),
    ],
)
def test_bad_arguments(arguments, options, kind, problem):
    with pytest.raises(kind, match=problem):
        PackedSequences(*arguments, **options)
