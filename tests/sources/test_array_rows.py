"""Map-style datasets: indices of every kind, copies, resuming and ranks, the same for all of them."""

import itertools
import pickle
import re

import numpy as np
import pytest

from gpuloader import (
    BatchSampler,
    ComposeDataset,
    ConcatDataset,
    DataLoader,
    MixDataset,
    PackedList,
    PackedSequences,
    Ragged,
    SequenceSampler,
    Subset,
    TableDataset,
    TensorDataset,
    TokenWindows,
)
from gpuloader.sources.array_rows import as_rows
from tests import loading
from tests.rank_loaders import loaders_of
from tests.sample_sets import assert_same
from tests.sources.files.test_arrays import write_hdf5, write_zarr

ROWS = 6
MASK = [True, False, True, False, False, True]
WORDS = ["a", "bb", "ccc", "d", "ee", "f"]
ARRAYS = {"x": np.arange(ROWS) / 2, "box": np.arange(12).reshape(ROWS, 2)}
COLUMNS = {**ARRAYS, "word": WORDS}
RAGGED = {**COLUMNS, "tokens": [[row] * (row + 1) for row in range(ROWS)]}


def make_parts(kind, **options):
    halves = (slice(0, 2), slice(2, ROWS))
    parts = [TableDataset({name: held[half] for name, held in COLUMNS.items()}) for half in halves]
    return kind(parts, **options)


def of_library(name):
    def make(_):
        module, columns = pytest.importorskip(name), {**RAGGED, "box": ARRAYS["box"].tolist()}
        return TableDataset(module.table(columns) if name == "pyarrow" else module.DataFrame(columns))

    return make


def stored(write):
    def make(folder):
        path, kind = write(folder, **ARRAYS)
        return kind(path)

    return make


DATASETS = {
    "TensorDataset": lambda _: TensorDataset(*ARRAYS.values()),
    "TableDataset": lambda _: TableDataset(RAGGED),
    "TableDataset of arrays": lambda _: TableDataset(ARRAYS),
    **{f"TableDataset of {name}": of_library(name) for name in ("pandas", "polars", "pyarrow")},
    "TokenWindows": lambda _: TokenWindows(np.arange(20), 5, stride=3),
    "TokenWindows of documents": lambda _: TokenWindows(np.arange(21), 3, stride=3, documents=[0, 10]),
    "PackedSequences": lambda _: PackedSequences(range(24), 4, documents=[3, 8, 9, 15, 20]),
    "PackedList": lambda _: PackedList(WORDS),
    "HDF5Dataset": stored(write_hdf5),
    "ZarrDataset": stored(write_zarr),
    "Subset": lambda _: Subset(TableDataset(RAGGED), [5, 4, 3, 2, 1, 0]),
    "ConcatDataset": lambda _: make_parts(ConcatDataset),
    "MixDataset": lambda _: make_parts(MixDataset, weights=[1, 1]),
    "ComposeDataset": lambda _: ComposeDataset([TokenWindows(np.arange(20), 5, stride=3), WORDS]),
}
SEVERAL = [
    ([2, 0, -1], [2, 0, 5]),
    (range(1, 4), [1, 2, 3]),
    (slice(1, 4), [1, 2, 3]),
    (slice(None, None, 2), [0, 2, 4]),
    (slice(None, None, -1), [5, 4, 3, 2, 1, 0]),
    (slice(-2, 99), [4, 5]),
    (np.array([3, -6]), [3, 0]),
    (np.array([3], np.uint8), [3]),
    (MASK, [0, 2, 5]),
    (np.array(MASK), [0, 2, 5]),
    ([np.int64(1), 2], [1, 2]),
    *((none, []) for none in ([], slice(4, 2), np.array([], np.int64), [False] * ROWS)),
]


def rows_of(batch):
    """Return the samples of a batch, in the form in which the dataset returns one."""
    if isinstance(batch, dict):
        return [dict(zip(batch, row, strict=True)) for row in zip(*map(rows_of, batch.values()), strict=True)]
    if isinstance(batch, tuple):
        return list(zip(*map(rows_of, batch), strict=True))
    if isinstance(batch, Ragged):
        (splits,) = batch.row_splits
        return [batch.values[start:stop] for start, stop in itertools.pairwise(splits)]
    return list(batch)


def plain(batches):
    """Return batches with tuples as lists, and ragged fields as their arrays, which can be compared."""
    if isinstance(batches, Ragged):
        return [batches.values, *batches.row_splits]
    if isinstance(batches, dict):
        return {name: plain(held) for name, held in batches.items()}
    return [plain(one) for one in batches] if isinstance(batches, tuple | list) else batches


@pytest.fixture(params=DATASETS, ids=str)
def dataset(request, tmp_path):
    made = DATASETS[request.param](tmp_path)
    yield made
    getattr(made, "close", int)()


class TestDatasets:
    def test_one_sample_or_several_at_once(self, dataset):
        for index in (np.int32(-2), np.array(4), 4, -2):
            assert_same(dataset[index], list(dataset)[4])
        for index, rows in SEVERAL:
            assert_same(rows_of(dataset[index]), [dataset[row] for row in rows])

    def test_no_such_sample_and_a_mask_of_another_length(self, dataset):
        for index, problem in (
            (6, "has no sample 6"), (-7, "has no sample -7"),
            ([0, 6], "has no sample 6, listed at position 1"),
            (np.array([-7]), "has no sample -7, listed at position 0"),
            (np.array([2**63 + 1], np.uint64), "has no sample 9223372036854775809, listed at position 0"),
            ([True], "takes a mask of 6 booleans, got 1"), (np.ones(7, bool), "takes a mask of 6 .*, got 7"),
        ):  # fmt: skip
            with pytest.raises(IndexError, match=f"^{type(dataset).__name__} of 6 samples {problem}"):
                dataset[index]

    def test_something_else(self, dataset):
        expected = " takes an index, a slice, or a list, array or tensor of indices or of booleans, got "
        for index, got in (
            (1.5, "1.5"), (None, "None"), ((1, 2), "(1, 2)"), ([0.5], "list of float64"),
            (["a"], "list of <U1"), ([None], "list of object"), ([[0], [1, 2]], "list, which is not"),
            (np.array([[0, 1]]), "ndarray of int64 and shape (1, 2)"),
            (np.ones((6, 1), bool), "ndarray of bool and shape (6, 1)"),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=re.escape(type(dataset).__name__ + expected + got)):
                dataset[index]

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_sampler_of_whole_batches(self, dataset, workers):
        """Each batch is one read of the dataset, and equal to the one that the loader makes of samples."""
        inner = SequenceSampler(dataset)
        if isinstance(dataset, MixDataset):
            inner = dataset.default_sampler(shuffle=False)
        sampler = BatchSampler(sampler=inner, batch_size=4)
        loader = DataLoader(dataset, places="cpu", batch_size=None, sampler=sampler, num_workers=workers)
        assert_same(plain(list(loader)), plain([dataset[rows] for rows in sampler]))

    def test_a_copy_has_the_same_samples(self, dataset):
        again = pickle.loads(pickle.dumps(dataset))
        assert_same(list(again), list(dataset))
        getattr(again, "close", int)()

    def test_a_loader_resumes_in_the_middle(self, dataset):
        options = options_of(dataset)
        before, again = loading.resume(lambda: loading.load(dataset, **options), 2)
        assert_same(plain([*before, *again]), plain(list(loading.load(dataset, **options))))

    def test_ranks_divide_it(self, dataset):
        options = options_of(dataset)
        steps = zip(*loaders_of(dataset, 2, **options, uneven="drop"), strict=True)
        found = [batch for step in steps for batch in step]
        assert_same(plain(found), plain(list(loading.load(dataset, **options))))


def options_of(dataset):
    ragged = ["tokens"] if isinstance(dataset[0], dict) and "tokens" in dataset[0] else []
    return {"batch_size": 1, "shuffle": True, "seed": 3, "ragged": ragged}


class TestShapes:
    def test_a_subset_joins_samples_of_lists_and_dicts(self):
        rows = [{"x": row, "word": word} for row, word in enumerate(WORDS)]
        found = Subset(rows, [5, 3, 1])[[0, -1]]
        assert (found["x"].tolist(), found["word"]) == ([5, 1], ["f", "bb"])
        assert Subset({"cat": 1, "dog": 2}, ["dog", "cat"])[:].tolist() == [2, 1]
        assert Subset("abc", [2, 0])[:] == ["c", "a"]

    def test_text_is_no_index(self):
        with pytest.raises(TypeError, match=r"^PackedList takes an index, .* got 'x'$"):
            PackedList(WORDS)["x"]
        with pytest.raises(
            TypeError, match=r"^a TableDataset is indexed by row, .* write dataset\[:\]\['x'\]$"
        ):
            TableDataset(RAGGED)["x"]

    def test_a_table_returns_columns_and_a_slice_does_not_copy_them(self):
        found = TableDataset(RAGGED)[[1, 0]]
        assert list(found) == ["x", "box", "word", "tokens"]
        assert (found["x"].tolist(), found["box"].tolist()) == ([0.5, 0], [[2, 3], [0, 1]])
        assert found["word"] == ["bb", "a"]
        assert isinstance(found["tokens"], Ragged)
        assert found["tokens"].values.tolist() == [1, 1, 0]
        assert np.shares_memory(TableDataset(COLUMNS)[1:3]["box"], COLUMNS["box"])
        assert not np.shares_memory(TableDataset(COLUMNS)[[1, 2]]["box"], COLUMNS["box"])

    def test_windows_lie_in_one_array(self):
        assert TokenWindows(np.arange(20), 5)[[1, 0]].tolist() == [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]
        assert TokenWindows(np.arange(20), 5)[[]].shape == (0, 5)

    def test_arrays_of_other_libraries_are_indices(self):
        class Series:
            """Has no `ndim`, as those of Polars."""

            def __len__(self):
                return 2

            def __array__(self, dtype=None, copy=None):
                return np.array([1, 0])

        assert PackedList(WORDS)[Series()] == ["bb", "a"]


@pytest.mark.parametrize(
    ("indices", "rows"),
    [
        ([2, 3], slice(2, 4)),
        ([3], slice(3, 4)),
        ([], []),
        ([3, 2], [3, 2]),
        ([0, 0, 2], [0, 0, 2]),
        ([-2, -1], [2, 3]),
        ([-1, 0], [3, 0]),
    ],
    ids=str,
)
def test_only_consecutive_indices_become_a_slice(indices, rows):
    found = as_rows("abcd", indices, 4)
    assert (found if isinstance(found, slice) else found.tolist()) == rows


@pytest.mark.parametrize("indices", [[2, 3, 4], [4], [-5, -4], [0, 4, 2]], ids=str)
def test_rows_that_do_not_exist_are_an_error(indices):
    with pytest.raises(IndexError, match="has no sample"):
        as_rows("abcd", indices, 4)
