"""Windows over tokens: which there are, and how they are loaded, resumed and divided among ranks."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import DataLoader, MixDataset, RandomSampler, Subset, TokenWindows
from gpuloader.sources.array_rows import find_arrays
from gpuloader.transforms import Cast
from tests import loading
from tests.fakes import memory_below
from tests.rank_loaders import numbers
from tests.sample_sets import PROCESSES, WORKERS, name_workers


@given(
    count=st.integers(1, 60),
    length=st.integers(1, 12),
    stride=st.integers(1, 14),
    documents=st.lists(st.integers(0, 60), max_size=6),
)
def test_windows_are_those_one_would_list(count, length, stride, documents):
    tokens = np.arange(count, dtype=np.uint16)
    documents = sorted(one for one in documents if one <= count)
    wanted = [
        tokens[start : start + length].tolist()
        for begin, end in itertools.pairwise([0, *documents, count])
        for start in range(begin, end - length + 1, stride)
    ]
    if not wanted:
        with pytest.raises(ValueError, match=f"no window of {length} tokens fits"):
            TokenWindows(tokens, length, stride=stride, documents=documents)
        return
    windows = TokenWindows(tokens, length, stride=stride, documents=documents)
    assert [window.tolist() for window in windows] == wanted
    assert len(windows) == len(wanted)
    source = find_arrays(windows)
    [array], rows = source.arrays, source.rows
    assert (array if rows is None else array[rows[:]]).tolist() == wanted
    loader = DataLoader(windows, places="cpu", batch_size=4)
    assert [window for batch in loader for window in batch.tolist()] == wanted


def test_by_default_windows_touch_and_a_batch_is_an_array_that_keeps_its_dtype():
    windows = TokenWindows(np.arange(8, dtype=np.uint16), 3)
    (batch,) = DataLoader(windows, places="cpu", batch_size=3)
    assert (batch.dtype, batch.tolist()) == (np.uint16, [[0, 1, 2], [3, 4, 5]])
    (batch,) = DataLoader(windows, places="cpu", batch_size=3, transforms=[Cast(dtype="int32")])
    assert batch.dtype == np.int32


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"documents": [5]}])
@pytest.mark.parametrize("workers", [*WORKERS, PROCESSES], ids=name_workers)
def test_inputs_come_with_targets(options, workers):
    tokens = np.arange(20, dtype=np.uint16)
    windows = TokenWindows(tokens, 3, targets=True, **options)
    wider = TokenWindows(tokens, 4, **{"stride": 3, **options})
    assert [[*map(list, pair)] for pair in windows] == [[list(one[:-1]), list(one[1:])] for one in wider]
    inputs, targets = windows[1:3]
    assert (inputs == wider[1:3][:, :-1]).all()
    assert (targets == wider[1:3][:, 1:]).all()
    assert len(find_arrays(windows).arrays) == 2
    cast = [Cast("0", "int64"), Cast("1", "int64")]
    loader = DataLoader(windows, places="cpu", batch_size=2, transforms=cast, **workers)
    inputs, targets = map(np.concatenate, zip(*loader, strict=True))
    assert (inputs.dtype, targets.dtype) == (np.int64, np.int64)
    assert (targets == inputs + 1).all()
    assert len(inputs) == len(wider)
    assert repr(windows).startswith(f"<TokenWindows: {len(windows)} windows of 3 tokens and targets, at ")


def test_windows_with_targets_need_one_token_more():
    assert len(TokenWindows(range(5), 4, targets=True)) == 1
    with pytest.raises(ValueError, match="no window of 5 tokens fits: the array has 4"):
        TokenWindows(range(4), 4, targets=True)
    with pytest.raises(TypeError, match="targets must be"):
        TokenWindows(range(4), 2, targets=1)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tokens.bin"
    (np.arange(5000) % 1000).astype(np.uint16).tofile(path)
    return np.memmap(path, np.uint16, "r")


load = partial(loading.load, batch_size=8, seed=3, shuffle=True)


def starts(loader):
    return [window[0] for batch in loader for window in batch.tolist()]


def test_random_windows_are_a_function_of_seed_and_epoch(file):
    windows = TokenWindows(file, 16, stride=1)

    def random(**options):
        sampler = RandomSampler(windows, replacement=True, num_samples=100)
        return load(windows, shuffle=False, sampler=sampler, **options)

    loader = random()
    first, second = starts(loader), starts(loader)
    assert len(first) == 100
    assert first != second
    assert starts(random(num_workers=2)) == first
    ranks = [random(shard=(rank, 3)) for rank in range(3)]
    steps = zip(*ranks, strict=True)
    divided = [window[0] for step in steps for batch in step for window in numbers(batch)]
    assert divided == first


def test_a_collate_function_gets_the_windows_in_processes(file):
    windows = TokenWindows(file, 16, documents=[7])
    loader = load(windows, collate_fn=lambda samples: np.stack(samples)[:, :-1], **PROCESSES)
    assert starts(loader) == starts(load(windows))
    assert np.shares_memory(windows.tokens, file)


def test_windows_of_windows(file):
    part = Subset(TokenWindows(file, 16, documents=[40]), [5, 0, -1])
    wanted = [window.tolist() for window in part]
    loader = DataLoader(part, places="cpu", batch_size=2)
    assert [window for batch in loader for window in batch.tolist()] == wanted
    mix = MixDataset([TokenWindows(file, 16), TokenWindows(range(5000, 9000), 16)], [1, 1])
    assert len(starts(load(mix))) == 500


def test_billions_of_tokens_take_no_memory():
    tokens = np.broadcast_to(np.uint16(7), 4 * 10**9)
    windows = TokenWindows(tokens, 1024, stride=1, documents=[10**9, 3 * 10**9])
    sampler = RandomSampler(windows, replacement=True, num_samples=10**9)
    with memory_below(8 << 20):
        batch = next(iter(load(windows, shuffle=False, sampler=sampler)))
    assert batch.shape == (8, 1024)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "problem"),
    [
        ((np.zeros((2, 2)), 1), {}, TypeError, r"one dimension of numbers, got shape \(2, 2\) of float64"),
        ((["a"], 1), {}, TypeError, "one dimension of numbers, got shape .* of <U1; join"),
        ((range(4), 5), {}, ValueError, "no window of 5 tokens fits: the array has 4"),
        ((range(4), 0), {}, ValueError, "length must be an integer of 1 or more"),
        ((range(4), 2), {"stride": 0}, ValueError, "stride must be an integer of 1 or more"),
        ((range(9), 6), {"documents": [4]}, ValueError, "fits: the longest document has 5"),
        *(
            ((range(9), 2), {"documents": wrong}, ValueError, "documents must be ascending .* from 0 to 9")
            for wrong in ([4, 3], [10], [-1])
        ),
        ((range(9), 2), {"documents": [0.5]}, TypeError, "documents must be a list of integers"),
    ],
)
def test_what_does_not_fit(arguments, options, kind, problem):
    with pytest.raises(kind, match=problem):
        TokenWindows(*arguments, **options)


def test_the_description_tells_what_it_holds():
    tokens = np.arange(10_000, dtype=np.uint16)
    assert repr(TokenWindows(tokens, 4, stride=2)) == (
        "<TokenWindows: 4,999 windows of 4 tokens, at a stride of 2; 10,000 tokens of uint16>"
    )
    assert repr(TokenWindows(tokens, 4, documents=[5_000, 9_998])) == (
        "<TokenWindows: 2,499 windows of 4 tokens, at a stride of 4 within 2 documents; 10,000 tokens of "
        "uint16>"
    )
