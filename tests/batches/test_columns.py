"""Columns: fields of samples that were kept, and of blocks that a source hands over."""

import itertools
import traceback
from functools import partial

import numpy as np
import pytest

from gpuloader import (
    DataLoader,
    IterableDataset,
    Padding,
    Ragged,
    SampleError,
    TableDataset,
    data,
    get_worker_info,
)
from gpuloader.batches.columns import split_columns
from gpuloader.batches.rows import SampleRows
from gpuloader.sources.block import Block, Chunked, Part, PlainObjects
from gpuloader.sources.describing import describe
from gpuloader.sources.images.regions import NUMBERS, Encoded, Region
from gpuloader.staging import arrange
from gpuloader.transforms import OneHot, Resize
from tests.api.streams import Items
from tests.loading import resume
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, assert_same, name_workers


def test_every_element_is_written():
    """Slots are reused, so no earlier contents may remain."""
    feeds = [data("x", [None, 2], "int64", 1), data("y", [None], "float32"), data("z", [None], "int64", 2)]
    samples = [([[1, 2]], 1, [[1], []]), ([], 2, []), ([[3, 4], [5, 6]], 3, [[7, 8]])]
    for pads in (None, {"x": Padding(-1)}):
        columns = split_columns(samples, SampleRows(feeds), pads)
        layout = arrange(tuple((column.shape, column.dtype) for column in columns))
        assert [field.shape for field in layout.fields] == [column.shape for column in columns]
        written = []
        for filling in (0, 1):
            memory = np.full(layout.nbytes, filling * 255, np.uint8)
            for column, field in zip(columns, layout.fields, strict=True):
                target = np.ndarray(field.shape, field.dtype, memory, field.offset)
                column.write(target)
                written.append(target.tolist())
        assert written[: len(columns)] == written[len(columns) :]


def columns_of(samples, feeds, pads=None):
    arrays = []
    for column in split_columns(samples, SampleRows(feeds), pads):
        arrays.append(np.empty(column.shape, column.dtype))
        column.write(arrays[-1])
    return arrays


def test_no_samples_are_empty_columns():
    feeds = [data("x", [None, 3], "int64", 1), data("y", [None, 2])]
    values, splits, dense = columns_of([], feeds)
    assert (values.shape, splits.tolist(), dense.shape) == ((0, 3), [0], (0, 2))
    assert columns_of([], feeds[:1], {"x": Padding(0)})[0].shape == (0, 0, 3)


def make_region(pixels, channels):
    shape = pixels, channels
    return Region(shape, np.zeros(NUMBERS, np.float32), np.full(shape, pixels, np.uint8))


TWO_REGIONS = [make_region(2, channels) for channels in (3, 1)]
STEPS = r"expected steps of shape \({},\) as .*, got \({},\)$"
ROWS = r"expected shape \(2,\) as in the batch's first sample, got \(3,\)"


@pytest.mark.parametrize(
    ("feed", "samples", "message"),
    [
        (data("x", [None, None], "f4", 1), [np.zeros((1, 2)), np.zeros((2, 3))], STEPS.format(2, 3)),
        (data("x", [None, None], "f4", 2), [[np.zeros((1, 2))] * 2, [np.zeros((1, 3))]], STEPS.format(2, 3)),
        (data("x", [None, None]), [np.zeros(2), np.zeros(3)], ROWS),
        (data("x", [None, 3], "uint8", 2), TWO_REGIONS, STEPS.format(3, 1)),
        (data("x", [None, 3], "uint8", 2), [Encoded.of(one) for one in TWO_REGIONS], STEPS.format(3, 1)),
    ],
)
def test_a_sample_unlike_the_first_is_named(feed, samples, message):
    beside = data("y", [None], "int64", 1)
    with pytest.raises(SampleError, match=message) as caught:
        columns_of([(sample, [1]) for sample in samples], [feed, beside])
    assert (caught.value.index, caught.value.field) == (1, "x")


class Names:
    """A column of text, or of other objects."""

    def __init__(self, values):
        self.values = np.asarray(values, object)

    def take(self, rows):
        return self.values[rows].tolist()


def make_columns(start, stop):
    numbers = np.arange(start, stop)
    lengths = numbers % 3
    return {
        "image": np.repeat(numbers, 4).reshape(-1, 2, 2).astype(np.float32),
        "label": numbers,
        "words": Ragged(np.repeat(numbers, lengths), (np.array([0, *np.cumsum(lengths)]),)),
        "name": Names([f"sample {number}" for number in numbers]),
    }


class Columns(IterableDataset):
    """Samples 0 to `count`, in columns of ten rows; every second part uses row numbers, not a slice."""

    def __init__(self, count=25, names=("image", "label", "name")):
        self.count = count
        self.names = names

    def __iter__(self):
        for block in self.iter_blocks(1):
            yield from block

    def iter_blocks(self, size):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for turn, start in enumerate(range(0, self.count, size)):
            if turn % step == first:
                yield Block(self.parts(start, min(start + size, self.count)))

    def parts(self, start, stop):
        parts = []
        while start < stop:
            base = start // 10 * 10
            end = min(stop, base + 10)
            columns = make_columns(base, base + 10)
            columns = {name: columns[name] for name in self.names}
            rows = slice(start - base, end - base)
            parts.append(Part(columns, np.arange(rows.start, rows.stop) if base % 20 else rows))
            start = end
        return parts


def check(batch):
    labels = batch["label"]
    if "image" in batch:
        assert (batch["image"] == labels[:, None, None]).all()
        assert batch["image"].dtype == np.float32
    if "name" in batch:
        assert batch["name"] == [f"sample {label}" for label in labels]
    return labels.tolist()


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, THREADS, PROCESSES], ids=name_workers)
def test_batches_are_those_of_the_samples(workers):
    loader = DataLoader(Columns(), places="cpu", batch_size=7, **workers)
    for _ in range(2):
        labels = [check(batch) for batch in loader]
        assert sorted(itertools.chain(*labels)) == list(range(25))
        assert [len(one) for one in labels].count(7) == 3


def test_columns_of_varying_length_are_ragged_or_padded():
    names = ("label", "words")
    (batch,) = DataLoader(Columns(25, names), places="cpu", batch_size=25, ragged=["words"])
    lengths = [number % 3 for number in range(25)]
    assert batch["words"].recursive_sequence_lengths() == [lengths]
    assert batch["words"].values.tolist() == np.repeat(np.arange(25), lengths).tolist()
    (batch,) = DataLoader(Columns(25, names), places="cpu", batch_size=25, pad={"words": -1})
    assert batch["words"].shape == (25, 2)
    assert batch["words"][4].tolist() == [4, -1]
    with pytest.raises(SampleError, match=r"field 'words': .* name the field in ragged, or in pad"):
        list(DataLoader(Columns(25, names), places="cpu", batch_size=25))


def test_a_collate_fn_gets_samples():
    def stack(samples):
        return np.array([sample["label"] for sample in samples])

    taken = Taken()
    for dataset in (Columns(), taken):
        loader = DataLoader(dataset, places="cpu", batch_size=5, collate_fn=stack)
        assert [batch.tolist() for batch in loader] == np.arange(25).reshape(5, 5).tolist()
    assert taken.blocks == []
    samples = list(DataLoader(Columns(2), places="cpu", batch_size=None))
    assert [sample["name"] for sample in samples] == ["sample 0", "sample 1"]


class Tenfold(Columns):
    def __iter__(self):
        for sample in super().__iter__():
            yield int(sample["label"]) * 10


def test_samples_of_a_derived_class_are_its_own():
    assert describe(Columns()).in_blocks
    assert not describe(Tenfold()).in_blocks
    [batch] = DataLoader(Tenfold(4), places="cpu", batch_size=4)
    assert batch.tolist() == [0, 10, 20, 30]


class Changing(Columns):
    def __init__(self, name, column, rows):
        super().__init__(9)
        self.name, self.column, self.rows = name, column, rows

    def iter_blocks(self, size):
        first, changed = make_columns(0, 3), {**make_columns(3, 6), self.name: self.column}
        for columns, rows in ((first, slice(0, 3)), (changed, self.rows), (first, slice(0, 3))):
            yield Block([Part(columns, rows)])


@pytest.mark.parametrize("rows", [slice(0, 3), np.array([1, 0, 2])], ids=["slice", "rows"])
@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("image", np.arange(18, dtype=np.float32).reshape(3, 2, 3)),
        ("label", np.array([3.0, 4.5, 5.0])),
        ("label", Names(["a", "b", "c"])),
        ("name", np.arange(3)),
        ("name", Names([{"x": 1}, {"x": 2}, {"x": 3}])),
        ("more", np.zeros(3)),
    ],
)
def test_a_column_may_change_from_block_to_block(name, column, rows):
    """Each block is a batch of its own schema, as if its samples had been read one by one."""
    dataset = Changing(name, column, rows)
    loader = DataLoader(dataset, places="cpu", batch_size=3, ragged=["words"])
    for _ in range(2):
        first, second, third = loader
        assert check(first) == check(third) == [0, 1, 2]
        (wanted,) = DataLoader(list(dataset)[3:6], places="cpu", batch_size=3, ragged=["words"])
        assert list(second) == list(wanted) == [*first, *({name} - set(first))]
        assert_same(second[name], wanted[name])


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
def test_the_first_sample_of_a_block_decides_about_a_column_of_objects(workers):
    """Not the schema of the block before it, which another worker may have read."""

    class Objects(IterableDataset):
        def __iter__(self):
            for block in self.iter_blocks(2):
                yield from block

        def iter_blocks(self, size):
            info = get_worker_info()
            for column in (["a", "b"], [1, 2], [None, 3], [4, 5])[
                (info.id if info else 0) :: 2 if info else 1
            ]:
                yield Block([Part({"x": Names(column)}, slice(0, 2))])

    loader = DataLoader(Objects(), places="cpu", batch_size=2, **workers)
    found = [batch["x"] for batch in loader]
    assert [list(one) for one in found] == [["a", "b"], [1, 2], [None, 3], [4, 5]]
    assert [type(one) for one in found] == [list, np.ndarray, list, np.ndarray]


def test_a_block_that_is_too_long_is_an_error():
    class Long(Columns):
        def iter_blocks(self, size):
            yield Block(self.parts(0, size + 1))

    with pytest.raises(SampleError, match=r"iter_blocks\(4\) yielded a block of 5 samples"):
        list(DataLoader(Long(), places="cpu", batch_size=4))


class Taken:
    """Samples 0 to 25 by index, in columns; notes what it was asked for. `changes` replaces later rows."""

    def __init__(self, changes=()):
        self.samples = [{"label": np.int64(number), "name": f"sample {number}"} for number in range(25)]
        for number, sample in dict(changes).items():
            self.samples[number] = sample
        self.blocks, self.rows = [], []

    def __len__(self):
        return 25

    def __getitem__(self, index):
        self.rows.append(index)
        return self.samples[index]

    def take_block(self, indices):
        self.blocks.append(list(indices))
        samples = [self.samples[index] for index in indices]
        return Block([Part(self.column(sample), slice(0, 1)) for sample in samples])

    @staticmethod
    def column(sample):
        return {name: Names([one]) if name == "name" else np.array([one]) for name, one in sample.items()}


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, THREADS, PROCESSES], ids=name_workers)
def test_samples_are_taken_in_columns_by_their_indices(workers):
    dataset = Taken()
    loader = DataLoader(dataset, places="cpu", batch_size=7, shuffle=True, seed=3, **workers)
    wanted = DataLoader(dataset.samples, places="cpu", batch_size=7, shuffle=True, seed=3)
    for found, other in zip(loader, wanted, strict=True):
        assert_same(found, other)
    assert dataset.rows == []
    if workers is not PROCESSES:
        assert sorted(itertools.chain(*dataset.blocks)) == list(range(25))


@pytest.mark.parametrize("kind", [Columns, Taken])
def test_columns_are_transformed(kind):
    loader = DataLoader(kind(), places="cpu", batch_size=10, transforms=[OneHot("label", classes=25)])
    assert np.concatenate([batch["label"] for batch in loader]).tolist() == np.eye(25).tolist()


def test_a_batch_whose_columns_differ_is_read_by_sample():
    dataset = Taken({5: {"label": np.int32(50), "name": "sample 5"}})
    first, second, *_ = DataLoader(dataset, places="cpu", batch_size=4)
    assert (first["label"].tolist(), second["label"].tolist()) == ([0, 1, 2, 3], [4, 50, 6, 7])
    assert second["label"].dtype == np.int64
    assert dataset.rows == [4, 5, 6, 7]


def test_a_sample_that_does_not_fit_is_named():
    dataset = Taken({5: {"label": np.zeros(2, np.int64), "name": "sample 5"}})
    with pytest.raises(SampleError, match="label") as caught:
        list(DataLoader(dataset, places="cpu", batch_size=4))
    assert (caught.value.batch, caught.value.index, caught.value.dataset_index) == (1, 1, 5)


@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)
def test_an_error_of_take_block_says_which_batch(workers):
    class Faulty(Taken):
        def take_block(self, indices):
            if 9 in indices:
                raise KeyError("no such row")
            return super().take_block(indices)

    message = r"the dataset raised KeyError: 'no such row' for indices \[.*9"
    with pytest.raises(SampleError, match=message) as caught:
        list(DataLoader(Faulty(), places="cpu", batch_size=4, **workers))
    assert caught.value.batch == 2
    assert isinstance(caught.value.__cause__, KeyError)


def test_pictures_are_transformed_one_by_one():
    dataset = Taken()
    dataset.samples = [{"image": np.full((4, 5, 3), number, np.uint8)} for number in range(25)]
    loader = DataLoader(dataset, places="cpu", batch_size=5, transforms=[Resize("image", (2, 2))])
    for number, batch in enumerate(loader):
        wanted = np.arange(5 * number, 5 * number + 5)[:, None, None, None]
        assert (batch["image"] == np.broadcast_to(wanted, (5, 2, 2, 3))).all()
    assert dataset.blocks == []


# Blocks that are divided among ranks.


class Whole(Columns):
    """The same columns, all of them whoever asks, as ranks that divide an epoch read them."""

    def iter_blocks(self, size):
        for start in range(0, self.count, size):
            yield Block(self.parts(start, min(start + size, self.count)))


def one_by_one(dataset):
    """Return the samples of a dataset in blocks, without the blocks."""
    return Items(partial(iter, dataset))


@pytest.mark.parametrize("uneven", ["pad", "drop", "repeat"])
@pytest.mark.parametrize(
    ("count", "workers"),
    [*itertools.product([1, 24, 25, 26], [INLINE, THREADS]), (25, PROCESSES)],
    ids=str,
)
def test_divided_blocks_are_divided_samples(count, uneven, workers):
    for rank in range(3):
        options = {"places": "cpu", "batch_size": 4, "shard": (rank, 3), "uneven": uneven}
        found = list(DataLoader(Whole(count), **options, **workers))
        wanted = list(DataLoader(one_by_one(Whole(count)), **options))
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)


MEMORY = {
    "plain": np.arange(24, dtype=np.float32),
    "big-endian": np.arange(24, dtype=">f4"),
    "strided": np.arange(96).reshape(24, 4)[:, 1],
    "rows in reverse": np.arange(24)[::-1],
    "columns in turn": np.asfortranarray(np.arange(72.0).reshape(24, 3)),
    "booleans": np.arange(24) % 3 == 0,
    "read-only": np.broadcast_to(np.float16(3), (24, 2)),
}


@pytest.mark.parametrize("name", MEMORY)
def test_a_rank_has_its_rows_however_they_lie_in_memory(name):
    class Lying(Columns):
        def parts(self, start, stop):
            return [Part({"x": MEMORY[name]}, slice(start, stop))]

    for rank in range(2):
        options = {"places": "cpu", "batch_size": 4, "shard": (rank, 2), "uneven": "drop"}
        found, wanted = (list(DataLoader(one, **options)) for one in (Lying(24), one_by_one(Lying(24))))
        assert len(found) == 3
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)


def test_every_so_many_rows_of_a_column_in_pieces_are_taken():
    column = Chunked([3, 5], [np.arange(3), np.arange(3, 8)].__getitem__)
    taken = Block([Part({"x": column}, slice(1, 8))]).take(range(0, 7, 3))
    assert len(taken) == 3
    assert taken.columns()["x"].tolist() == [sample["x"] for sample in taken] == [1, 4, 7]


@pytest.mark.parametrize("shard", [None, (0, 1), (1, 2)])
def test_no_sample_is_made_but_the_one_that_settles_the_form(shard, monkeypatch):
    made = []
    iterate = Block.__iter__
    monkeypatch.setattr(Block, "__iter__", lambda block: (made.append(one) or one for one in iterate(block)))
    options = {} if shard is None else {"shard": shard, "uneven": "drop"}
    loader = DataLoader(Columns() if shard is None else Whole(), places="cpu", batch_size=4, **options)
    labels = [label for batch in loader for label in check(batch)]
    rank, ranks = shard or (0, 1)
    assert labels == list(range(rank, 25 // ranks * ranks, ranks))
    assert [int(sample["label"]) for sample in made] == [rank]


@pytest.mark.parametrize("batch_size", [3, 4, 5])
def test_divided_blocks_resume_in_batches_of_another_size(batch_size):
    def load(size):
        return DataLoader(Whole(), places="cpu", batch_size=size, shard=(0, 2), uneven="drop", seed=1)

    sizes = iter([3, batch_size])
    before, second = resume(lambda: load(next(sizes)), 2)
    batches = [*before, *second]
    assert [label for batch in batches for label in check(batch)] == list(range(0, 24, 2))


def test_a_value_that_no_field_holds_is_told_once():
    """A refusal is a ValueError, as is a value that only does not fit as it is."""
    with pytest.raises(SampleError) as refused:
        list(DataLoader([(1, 2.0, 0), ("a", 2.0, 0)], places="cpu", batch_size=2))
    told = "".join(traceback.format_exception(refused.value))
    assert told.count("errors.SampleError:") == 1


# Many columns of one dtype.


class PlainNames(Names, PlainObjects):
    """A column of text, known to hold nothing else."""


class Alike(IterableDataset):
    """Blocks of ten columns of 300 rows, whose values name column and row, and perhaps of text."""

    def __init__(self, dtype="float32", shape=(), text=False, writeable=False):
        self.arrays = {}
        for number in range(10):
            rows = np.arange(300).reshape(300, *[1] * len(shape)) + 1000 * number
            self.arrays[f"x{number}"] = np.broadcast_to(rows, (300, *shape)).astype(dtype)
            self.arrays[f"x{number}"].flags.writeable = writeable
        self.columns = {
            **self.arrays,
            **({"text": PlainNames([f"row {row}" for row in range(300)])} if text else {}),
        }

    def iter_blocks(self, size):
        for start in range(0, 300, size):
            yield Block([Part(self.columns, slice(start, min(start + size, 300)))])

    def __iter__(self):
        for block in self.iter_blocks(1):
            yield from block


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", ()), ("uint8", (2, 3)), ("int64", ()), ("complex128", (2, 3))]
)
@pytest.mark.parametrize("shard", [None, (1, 3)])
def test_many_columns_of_one_dtype_arrive_as_they_are_stored(dtype, shape, shard):
    for text in (False, True):
        dataset = Alike(dtype, shape, text)
        for size in (1, 7, 64, 300):
            batches = list(DataLoader(dataset, places="cpu", batch_size=size, shard=shard))
            for name, column in dataset.arrays.items():
                rows = column if shard is None else column[1::3]
                assert_same(np.concatenate([batch[name] for batch in batches]), rows)


def test_one_of_many_columns_can_be_written_and_outlives_the_others():
    loader = DataLoader(Alike(), places="cpu", batch_size=50)
    kept = []
    for batch in loader:
        batch["x3"] += 1  # which neither changes another field nor a later batch
        assert (batch["x4"] - batch["x3"] == 999).all()
        kept.append(batch["x3"])
        assert batch["x3"].flags.c_contiguous
    assert np.concatenate(kept).tolist() == list(range(3001, 3301))


@pytest.mark.parametrize("read_only", [False, True])
def test_columns_that_the_loop_changes_are_read_when_their_batch_is(read_only):
    dataset = Alike(writeable=True)
    arrays = dataset.arrays.values()
    if read_only:  # as pandas hands out a column that the program still changes
        views = {name: array.view() for name, array in dataset.arrays.items()}
        for view in views.values():
            view.flags.writeable = False
        text = pytest.importorskip("pyarrow").array([f"row {row}" for row in range(300)])
        dataset = TableDataset({**views, "text": text})
    loader = DataLoader(dataset, places="cpu", batch_size=10, use_buffer_reader=False)
    for turn, batch in enumerate(itertools.chain(loader, loader)):
        first = 5000 + turn % 30 * 10 + turn
        assert batch["x5"].tolist() == list(range(first, first + 10))
        for array in arrays:
            array += 1
