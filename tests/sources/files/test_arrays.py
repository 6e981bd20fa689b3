"""Arrays in Zarr and HDF5 stores, row by row."""

import multiprocessing
import os
import pickle
import resource
import shutil
import struct
import sys
import tempfile
from contextlib import closing

import numpy as np
import pytest

from gpuloader import (
    ConcatDataset,
    DataFileError,
    DataLoader,
    HDF5Dataset,
    SampleError,
    SourceError,
    Subset,
    ZarrDataset,
    random_split,
)
from gpuloader.errors import MissingPackage
from gpuloader.sources.block import number_rows
from gpuloader.sources.files import stored_arrays
from gpuloader.sources.files.stored_arrays import StoredArrays
from tests.fakes import nothing_left_behind
from tests.fetch.faulty import run_program
from tests.sample_sets import INLINE, PROCESSES, THREADS
from tests.sources.files.serving import serve

COUNT = 60
IMAGES = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)


def write_hdf5(folder, **arrays):
    h5py = pytest.importorskip("h5py")
    path = folder / "a.h5"
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, chunks=(8, 2, 3) if name == "image" else None)
        file.create_group("more")["label"] = np.zeros(COUNT)
    return path, HDF5Dataset


def write_zarr(folder, **arrays):
    zarr = pytest.importorskip("zarr")
    path = folder / "a.zarr"
    group = zarr.create_group(path)
    for name, array in arrays.items():
        stored = group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(8, *array.shape[1:]))
        stored[:] = array
    stored = group.create_group("more").create_array("label", shape=(COUNT,), dtype="f8")
    stored[:] = 0
    return path, ZarrDataset


WRITERS = [write_hdf5, write_zarr]


@pytest.fixture(params=WRITERS, ids=["HDF5", "Zarr"])
def write(request):
    return request.param


@pytest.fixture
def dataset(write, tmp_path):
    path, kind = write(tmp_path, image=IMAGES, label=np.arange(COUNT))
    with closing(kind(path)) as dataset:
        yield dataset


@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=str)
def test_rows_are_read_in_any_order_by_any_workers(dataset, workers):
    assert dataset[3]["label"] == 3  # opens it in this process
    with closing(pickle.loads(pickle.dumps(dataset))) as again:  # as it goes to a worker
        assert again[3]["label"] == 3
    loader = DataLoader(dataset, places="cpu", batch_size=7, shuffle=True, seed=1, **workers)
    seen = []
    for batch in loader:
        assert (batch["image"] == IMAGES[batch["label"]]).all()
        seen += batch["label"].tolist()
    assert sorted(seen) == list(range(len(dataset))) == list(range(COUNT))


class Spied:
    """An array that records which rows are read."""

    def __init__(self, array, chunks):
        self.array, self.chunks = array, chunks
        self.shape, self.dtype = array.shape, array.dtype
        self.reads = []

    def __getitem__(self, rows):
        self.reads.append((rows.start, rows.stop))
        return self.array[rows].copy()


@pytest.mark.parametrize(
    ("chunks", "reads"),
    [((8, 2, 3), [(1, 8), (17, 19), (56, 57)]), (None, [(1, 3), (7, 8), (17, 19), (56, 57)])],
    ids=["chunks", "none"],
)
def test_a_batch_is_read_chunk_by_chunk(dataset, chunks, reads):
    spied = Spied(IMAGES, chunks)
    rows = [18, 2, 56, 1, 7, 2, 17]
    dataset._arrays()["image"] = spied
    samples = dataset.__getitems__(rows)
    assert spied.reads == reads
    assert [sample["image"].tolist() for sample in samples] == IMAGES[rows].tolist()


@pytest.mark.parametrize("size", [3, 8, 13, 60])
def test_batches_in_order_are_read_several_chunks_at_a_time(dataset, monkeypatch, size):
    monkeypatch.setattr(type(dataset), "_ahead_nbytes", 21 * 32)  # of 32 bytes per row
    spied = Spied(IMAGES, (8, 2, 3))
    dataset._arrays()["image"] = spied
    loader = DataLoader(dataset, places="cpu", batch_size=size)
    for _ in range(2):
        spied.reads.clear()
        for at, batch in enumerate(loader):
            rows = slice(size * at, size * at + size)
            assert batch["image"].tolist() == IMAGES[rows].tolist()
            assert batch["label"].tolist() == [*range(COUNT)][rows]
            batch["image"][...] = -1  # changes nothing that is read later
        assert spied.reads == ([(0, 60)] if size == 60 else [(0, 16), (16, 32), (32, 48), (48, 60)])


def test_a_pass_that_begins_anew_sees_what_was_written_meanwhile(dataset):
    stored = IMAGES.copy()
    dataset._arrays()["image"] = Spied(stored, (8, 2, 3))
    loader = DataLoader(dataset, places="cpu", batch_size=4)
    assert next(iter(loader))["image"].tolist() == IMAGES[:4].tolist()
    stored[:8] = 7
    assert [batch["image"].min() for _, batch in zip(range(2), loader, strict=False)] == [7, 7]


def write_lengths(path, **arrays):
    """Write an HDF5 file whose rows have 0, 1, 2 and more bytes, next to other arrays; return its path."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("jpeg", (COUNT,), h5py.vlen_dtype(np.uint8))
        for row in range(COUNT):
            stored[row] = np.full(row, row)
        for name, values in arrays.items():
            file.create_dataset(name, data=values)
    return path


def test_rows_of_any_length_are_not_read_ahead(tmp_path):
    dataset = HDF5Dataset(write_lengths(tmp_path / "v.h5"))
    spied = dataset._arrays()["jpeg"] = Spied(dataset._arrays()["jpeg"][:], None)
    loader = DataLoader(dataset, places="cpu", batch_size=4, ragged=["jpeg"], use_buffer_reader=False)
    batch = next(iter(loader))
    assert batch["jpeg"].lengths.tolist() == [0, 1, 2, 3]
    assert set(spied.reads) == {(0, 4)}


def test_a_large_chunk_is_read_once_if_it_may_be_kept(dataset, monkeypatch):
    for most, reads in [(64 << 20, [(0, 32), (32, 60)]), (100, [(at, at + 5) for at in range(0, 60, 5)])]:
        monkeypatch.setattr(type(dataset), "_ahead_nbytes", 0)
        monkeypatch.setattr(stored_arrays, "CHUNK_NBYTES", most)
        spied = Spied(IMAGES, (32, 2, 3))
        dataset._arrays()["image"] = spied
        assert len(list(DataLoader(dataset, places="cpu", batch_size=5))) == 12
        assert spied.reads == reads


@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=str)
def test_workers_read_only_their_own_batches_and_rows_do_not_become_samples(dataset, workers, monkeypatch):
    read = multiprocessing.SimpleQueue()

    class Noting(type(dataset)):
        def __getitems__(self, indices):
            raise AssertionError

        def _read(self, name, array, start, stop, *more):
            read.put((os.getpid(), stop - start))
            return super()._read(name, array, start, stop, *more)

    noting = Noting(dataset._url)
    monkeypatch.setattr(Noting, "take_block", type(dataset).take_block, raising=False)
    found = []
    for order in ({}, {"shuffle": True, "seed": 1}):
        list(DataLoader(noting, places="cpu", batch_size=10, **order, **workers))
        while not read.empty():
            found.append(read.get())
        assert order or sum(rows for _, rows in found) == 2 * COUNT
    assert (os.getpid() in dict(found)) is (workers is not PROCESSES)  # decoding keeps its processes


def read_by_chunks(dataset, **options):
    """Return the labels of an epoch, batch by batch, after comparing the images that come with them."""
    options = {"places": "cpu", "batch_size": 7, "shuffle": "chunks", "seed": 1, **options}
    found = []
    for batch in DataLoader(dataset, **options):
        assert (batch["image"] == IMAGES[batch["label"]]).all()
        found.append(batch["label"].tolist())
    return found


@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES, {"num_workers": 2}], ids=str)
def test_shuffled_chunks_hold_every_row_once_and_are_each_read_once(write, tmp_path, workers, monkeypatch):
    path, kind = write(tmp_path, image=IMAGES, label=np.arange(COUNT))
    read = multiprocessing.SimpleQueue()
    real = StoredArrays._read_columns

    def noting(self, rows):
        read.put(number_rows(rows).tolist())
        return real(self, rows)

    monkeypatch.setattr(StoredArrays, "_read_columns", noting)
    with closing(kind(path, shuffle_buffer=20)) as dataset:
        batches = read_by_chunks(dataset, **workers)
        windows = []
        while not read.empty():
            windows.append(read.get())
        assert batches == read_by_chunks(dataset)  # whoever fetches
    seen = [row for batch in batches for row in batch]
    assert sorted(seen) == list(range(COUNT))
    for window in windows:  # two chunks of eight rows, or four in the last
        assert len({row // 8 for row in window}) == 2
        assert sorted(window) == sorted(
            row for row in range(COUNT) if row // 8 in {one // 8 for one in window}
        )
    assert workers is PROCESSES or sorted(row for window in windows for row in window) == list(range(COUNT))


def test_early_releases_of_zarr_return_the_same_chunks_as_new_arrays(tmp_path, monkeypatch):
    path, _ = write_zarr(tmp_path, image=IMAGES, label=np.arange(COUNT))
    with closing(ZarrDataset(path)) as dataset:
        batches = read_by_chunks(dataset)
        found = next(iter(dataset._arrays().values())).async_array
        monkeypatch.delattr(type(found), "get_orthogonal_selection", raising=False)
        assert read_by_chunks(dataset) == batches


def test_shuffled_chunks_differ_by_epoch_and_seed_and_resume_anywhere(dataset):
    options = {"places": "cpu", "batch_size": 7, "shuffle": "chunks"}
    loader = DataLoader(dataset, seed=1, **options)
    epochs = [[batch["label"].tolist() for batch in loader] for _ in range(2)]
    assert epochs[0] == read_by_chunks(dataset) != epochs[1]
    assert read_by_chunks(dataset, seed=2) != epochs[0]
    assert len(loader) == 9
    for taken in range(1, 9):
        loader.set_epoch(1)
        for _ in zip(range(taken), loader, strict=False):
            pass
        again = DataLoader(dataset, **options)
        again.load_state_dict(loader.state_dict())
        assert [batch["label"].tolist() for batch in again] == epochs[1][taken:]


def test_ranks_divide_shuffled_chunks(dataset):
    shares = [read_by_chunks(dataset, shard=(rank, 3), uneven="drop") for rank in range(3)]
    assert len({len(batch) for share in shares for batch in share[-1:]}) == 1
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(COUNT))


def test_a_part_of_a_dataset_is_shuffled_by_chunks(dataset):
    train, test = random_split(dataset, [45, 15], seed=0)
    few = Subset(test, [-1, 0, 3])
    for part, rows in ((train, train.indices), (few, test.indices[[14, 0, 3]])):
        assert sorted(row for batch in read_by_chunks(part) for row in batch) == sorted(rows.tolist())


def test_a_state_is_of_one_window(dataset):
    options = {"places": "cpu", "batch_size": 7, "seed": 1}
    loader = DataLoader(dataset, shuffle="chunks", **options)
    next(iter(loader))
    dataset._buffer = COUNT  # as if it were made again, with another shuffle_buffer
    for shuffle in ("chunks", True, False):
        again = DataLoader(dataset, shuffle=shuffle, **options)
        with pytest.raises(ValueError, match=r"resume with .* the same shuffle and shuffle_buffer"):
            again.load_state_dict(loader.state_dict())


def note_rows(dataset, monkeypatch):
    """Return a list that grows by the rows that are read from then on."""
    asked, read = [], dataset._read_columns

    def note(rows):
        asked.extend(number_rows(rows))
        return read(rows)

    monkeypatch.setattr(dataset, "_read_columns", note)
    return asked


def test_only_chunks_of_a_subset_are_read_and_shuffled_together(dataset, monkeypatch):
    asked = note_rows(dataset, monkeypatch)
    batches = read_by_chunks(Subset(dataset, np.arange(16, 32)))
    assert sorted(asked) == sorted(row for batch in batches for row in batch) == list(range(16, 32))
    assert {row // 8 for row in batches[0]} == {2, 3}


def test_a_cache_is_filled_in_order_and_shuffled_by_chunks(dataset, monkeypatch):
    asked = note_rows(dataset, monkeypatch)
    assert read_by_chunks(dataset, cache="host") == read_by_chunks(dataset)
    assert asked[:COUNT] == list(range(COUNT))
    assert len(asked) == 2 * COUNT


@pytest.mark.parametrize("bad", ["raise", "skip"])
def test_a_damaged_chunk_in_a_window_spoils_only_its_own_rows(tmp_path, bad, monkeypatch):
    path, kind = write_zarr(tmp_path, image=IMAGES, label=np.arange(COUNT))
    (path / "image" / "c" / "1" / "0" / "0").write_bytes(b"junk")
    dataset = kind(path, shuffle_buffer=COUNT)
    if bad == "skip":
        asked = note_rows(dataset, monkeypatch)
        rows = [row for batch in read_by_chunks(dataset, on_bad="skip") for row in batch]
        assert sorted(rows) == [*range(8), *range(16, COUNT)]
        # The window, its chunks, and the rows of the damaged one: of each batch that has any, and one by one.
        assert len(asked) <= COUNT + COUNT + 9 * 7 + 2 * 8
    else:
        with pytest.raises(SampleError, match="column 'image': cannot read rows"):
            read_by_chunks(dataset)


def test_rows_of_any_length_and_arrays_without_chunks_are_shuffled_by_chunks(tmp_path):
    path = write_lengths(tmp_path / "v.h5", name=[f"row {row}" for row in range(COUNT)])
    with closing(HDF5Dataset(path)) as dataset:
        loader = DataLoader(dataset, places="cpu", batch_size=7, shuffle="chunks", seed=1, ragged=["jpeg"])
        batches = [(batch["jpeg"].lengths.tolist(), batch["name"]) for batch in loader]
    found = [row for rows, _ in batches for row in rows]
    assert sorted(found) == list(range(COUNT)) != found
    assert [name for _, names in batches for name in names] == [b"row %d" % row for row in found]


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("uint8", {}),
        (">f4", {}),
        ("bool", {}),
        ("12 bits of an int16", {}),
        ("int64", {"fletcher32": True}),
        ("int64", {"compression": "gzip"}),
        ("int64", {"chunks": (8, 2, 2)}),
    ],
    ids=str,
)
def test_hdf5_chunks_have_the_values_that_h5py_reads(tmp_path, dtype, options, monkeypatch):
    h5py = pytest.importorskip("h5py")
    if dtype.startswith("12 bits"):
        dtype = h5py.h5t.NATIVE_INT16.copy()
        dtype.set_precision(12)
        dtype.set_offset(2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        given = {"shape": (61, 2, 3), "dtype": dtype, "chunks": (8, 2, 3), "fillvalue": 1, **options}
        array = file.create_dataset("x", **given)
        values = (np.arange(61 * 6).reshape(61, 2, 3) % 100).astype(array.dtype)
        array[:20], array[40:] = values[:20], values[40:]
        file["row"] = np.arange(61)
        expected = array[...]  # rows 24 to 39 lie in chunks that were never written
    dataset = HDF5Dataset(tmp_path / "a.h5", shuffle_buffer=24)
    ordered = np.concatenate([batch["x"] for batch in DataLoader(dataset, batch_size=7, places="cpu")])
    np.testing.assert_array_equal(ordered, expected)
    assert ordered.dtype == expected.dtype.newbyteorder("=")
    for workers in (INLINE, THREADS):
        rows = []
        for batch in DataLoader(dataset, batch_size=7, places="cpu", shuffle="chunks", **workers):
            np.testing.assert_array_equal(batch["x"], expected[batch["row"]])
            rows += batch["row"].tolist()
        assert sorted(rows) == list(range(61))
    dataset.close()


def write_layouts(path):
    """Write ten rows to an HDF5 file in every way in which HDF5 stores them; return what h5py reads."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path.with_name("other.h5"), "w") as file:
        file["x"] = np.arange(20).reshape(10, 2)
    layout = h5py.VirtualLayout((10, 2), "i8")
    layout[:] = h5py.VirtualSource(path.with_name("other.h5"), "x", (10, 2))
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    with h5py.File(path, "w", userblock_size=512) as file:
        file["row"] = np.arange(10)
        file["big endian"] = np.arange(30, dtype=">f8").reshape(10, 3)
        file["half"] = np.arange(10, dtype="f2")
        file["no numbers"] = np.zeros((10, 0))
        file["complex"] = np.arange(10) * 1j
        file.create_virtual_dataset("virtual", layout)
        file["linked"] = h5py.ExternalLink("other.h5", "x")
        external = [(str(path.with_name("raw")), 0, 80)]
        file.create_dataset("external", data=np.arange(10.0), external=external)
        file.create_dataset("never written", (10, 3), "f4", fillvalue=3)
        file.create_dataset("larger chunks", data=np.ones((10, 3)), maxshape=(None, 5), chunks=(4, 5))
        file.create_dataset("part written", (10, 3), "i8", maxshape=(None, 3), chunks=(2, 3))[:7] = 7
        space = h5py.h5s.create_simple((10,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT16, space, compact)
        h5py.Dataset(made)[:] = np.arange(10)
    with h5py.File(path) as file:
        return {name: array[:] for name, array in file.items()}


@pytest.mark.parametrize("shuffle", [False, True, "chunks"])
def test_hdf5_rows_are_those_that_h5py_reads_however_they_are_stored(tmp_path, shuffle):
    expected = write_layouts(tmp_path / "a.h5")
    with closing(HDF5Dataset(tmp_path / "a.h5")) as dataset:
        batches = list(DataLoader(dataset, places="cpu", batch_size=3, shuffle=shuffle, seed=0))
    rows = np.concatenate([batch["row"] for batch in batches])
    assert sorted(rows) == list(range(10))
    for name, values in expected.items():
        found = np.concatenate([batch[name] for batch in batches])
        assert found.dtype == values.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, values[rows])


def test_hdf5_rows_that_this_process_has_written_but_not_flushed(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((4, 9)), chunks=(2, 9))
        with closing(HDF5Dataset(tmp_path / "a.h5")) as dataset:
            file["x"][1] = 5
            assert dataset[:]["x"].max(axis=1).tolist() == [0, 5, 0, 0]


@pytest.mark.parametrize("chunks", [None, (300, 9)])
def test_an_hdf5_file_that_is_cut_off_while_it_is_read(tmp_path, chunks):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros((400, 9)), chunks=chunks)
    with closing(HDF5Dataset(path)) as dataset:
        assert dataset[0]["x"].tolist() == [0] * 9
        os.truncate(path, 3000)
        with pytest.raises(DataFileError, match=r"rows 399 to 399: .*the file ends before row 399"):
            dataset[399]


def test_an_hdf5_file_costs_one_descriptor_and_is_free_once_it_is_closed(tmp_path):
    """It could not be written again while a traceback referred to an array."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((400, 9)), chunks=(300, 9))
    before = set(os.listdir("/proc/self/fd"))
    dataset = HDF5Dataset(tmp_path / "a.h5")
    array = dataset._arrays()["x"]
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    dataset.close()
    with h5py.File(tmp_path / "a.h5", "w"), pytest.raises(ValueError, match="closed"):
        array.read(0, 9, None)


def test_few_rows_of_many_are_not_read_along_with_all_in_between(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(1_000_000)
        file.create_dataset("chunked", data=np.arange(1_000_000), chunks=(10_000,))
    lengths, preadv = [], os.preadv
    with closing(HDF5Dataset(tmp_path / "a.h5")) as dataset:
        monkeypatch.setattr(
            os, "preadv", lambda file, to, at: lengths.append(to[0].nbytes) or preadv(file, to, at)
        )
        rows = dataset[::1000]
    assert rows["x"].tolist() == rows["chunked"].tolist() == list(range(0, 1_000_000, 1000))
    assert len(lengths) < 150  # joined, because the rows lie close together
    assert max(lengths) <= stored_arrays.PIECE_NBYTES


def test_a_number_beside_hdf5_arrays_is_an_error_that_names_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["rate"] = np.arange(4), 44100
    with pytest.raises(
        DataFileError, match="'rate': expected an array with a first dimension, got one value"
    ):
        HDF5Dataset(tmp_path / "a.h5")


@pytest.mark.parametrize("shuffle", [False, "chunks"])
def test_an_hdf5_chunk_that_claims_another_size_is_an_error(tmp_path, shuffle):
    """HDF5 itself would leave what the memory held before."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        array = file.create_dataset("x", data=np.ones((400, 1000)), chunks=(40, 1000))
        chunk = array.id.get_chunk_info(1)
    key = struct.pack("<II3Q", chunk.size, 0, *chunk.chunk_offset, 0)
    damaged = path.read_bytes().replace(key, struct.pack("<I", 8) + key[4:])
    path.write_bytes(damaged)
    with closing(HDF5Dataset(path)) as dataset, pytest.raises(SampleError) as raised:
        list(DataLoader(dataset, places="cpu", batch_size=40, shuffle=shuffle))
    assert "the chunk of row 40 has 8 bytes, not 320000" in str(raised.value.__cause__)


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=str)
def test_a_file_that_has_lost_rows_since_is_an_error(write, tmp_path, workers):
    path, kind = write(tmp_path, image=IMAGES, label=np.arange(COUNT))
    with closing(kind(path)) as dataset:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        write(tmp_path, image=IMAGES[:-1], label=np.arange(COUNT - 1))
        # The last batch has two rows, of which only one is left: it would come twice.
        with pytest.raises(SampleError, match="'image': 59 of 60 rows are left"):
            list(DataLoader(dataset, places="cpu", batch_size=29, **workers))


def test_what_has_no_chunks_is_not_shuffled_by_them(dataset):
    class Changed(type(dataset)):
        def __getitem__(self, index):
            return super().__getitem__(index)["label"]

    with closing(Changed(dataset._url)) as changed:
        for other in (range(9), [1, 2], ConcatDataset([dataset, dataset]), changed):
            with pytest.raises(TypeError, match=r"is for arrays stored in chunks: .* got .*; pass shuffle"):
                DataLoader(other, places="cpu", shuffle="chunks")
    for options in ({"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError, match="shuffle"):
            DataLoader(dataset, places="cpu", shuffle="chunks", **options)
    with pytest.raises(ValueError, match="shuffle_buffer must be an integer of 1 or more"):
        type(dataset)(dataset._url, shuffle_buffer=0)


def test_arrays_go_by_name(write, tmp_path):
    path, kind = write(tmp_path, image=IMAGES, label=np.arange(3))
    with pytest.raises(DataFileError, match=r"same number of rows, got .*60.*3"):
        kind(path)
    with closing(kind(path, ["more/label"])) as dataset:
        assert dataset[0] == {"more/label": 0.0}
    for name in ("lable", "more"):
        with pytest.raises(DataFileError, match="there is no array of this name") as caught:
            kind(path, [name])
        assert (caught.value.file, caught.value.column) == (str(path), name)
    with pytest.raises(TypeError, match="arrays must be a list"):
        kind(path, "label")
    for names in ([], ["label", "label"]):
        with pytest.raises(ValueError, match="arrays must be one or more different names"):
            kind(path, names)


def test_a_store_may_be_one_array(tmp_path):
    pytest.importorskip("zarr").save(tmp_path / "pictures.zarr", IMAGES)
    dataset = ZarrDataset(tmp_path / "pictures.zarr")
    assert dataset[5]["pictures"].tolist() == IMAGES[5].tolist()


@pytest.mark.parametrize(
    ("kind", "package", "extra"), [(HDF5Dataset, "h5py", "hdf5"), (ZarrDataset, "zarr", "zarr")]
)
def test_a_store_or_a_package_that_is_not_there(tmp_path, monkeypatch, kind, package, extra):
    pytest.importorskip(package)
    with pytest.raises(SourceError, match="gone: ") as caught:
        kind(tmp_path / "gone")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=rf"pip install '.*\[{extra}\]"):
        kind(tmp_path / "gone")


def test_a_zarr_store_in_an_archive_is_refused(tmp_path):
    zarr = pytest.importorskip("zarr")
    with zarr.storage.ZipStore(tmp_path / "a.zarr.zip", mode="w") as store:
        zarr.create_array(store, name="x", data=np.arange(4))
    with pytest.raises(DataFileError, match=r"a\.zarr\.zip: a Zarr store is a folder, .*; unpack a \.zip"):
        ZarrDataset(tmp_path / "a.zarr.zip")


def test_a_file_that_is_damaged(tmp_path):
    path, kind = write_hdf5(tmp_path, image=IMAGES)
    body = path.read_bytes()
    for damaged in (body[: len(body) // 2], b"x" * 3000, b""):
        path.write_bytes(damaged)
        with pytest.raises(DataFileError, match="the file is truncated or not an HDF5 file") as caught:
            kind(path)
        assert caught.value.file == str(path)


@pytest.mark.parametrize("arrays", [None, ["x"]])
@pytest.mark.parametrize("signature", [b"SNOD", b"TREE", b"HEAP"])  # of its table, a tree over it, its names
def test_a_damaged_group_is_an_error_that_names_the_file(tmp_path, signature, arrays):
    path, kind = write_hdf5(tmp_path, x=np.arange(8))
    whole = path.read_bytes()
    assert signature in whole
    path.write_bytes(whole.replace(signature, b"????"))
    with pytest.raises(DataFileError, match=r"a\.h5"):
        kind(path, arrays)


def test_a_program_ends_while_its_daemon_threads_read(tmp_path):
    with pytest.importorskip("h5py").File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.random.rand(512, 4096), chunks=(8, 4096), compression="gzip")
    program = """
        import sys, threading, time
        from gpuloader import HDF5Dataset

        dataset = HDF5Dataset(sys.argv[1])

        def read():
            while True:
                dataset.__getitems__(range(0, 512, 8))

        for _ in range(3):
            threading.Thread(target=read, daemon=True).start()
        time.sleep(0.2)
    """
    assert run_program(program, str(tmp_path / "a.h5")).returncode == 0


def test_a_chunk_that_is_damaged(tmp_path):
    path, kind = write_zarr(tmp_path, image=IMAGES)
    (path / "image" / "c" / "1" / "0" / "0").write_bytes(b"junk")
    epoch = iter(DataLoader(kind(path), places="cpu", batch_size=5))
    assert next(epoch)["image"].tolist() == IMAGES[:5].tolist()  # although that chunk is read ahead
    with pytest.raises(SampleError, match="column 'image': cannot read rows 8 to 9") as caught:
        list(epoch)
    assert isinstance(caught.value.__cause__, DataFileError)
    assert caught.value.__cause__.column == "image"


def test_a_copy_that_breaks_off_is_not_left_open(tmp_path, remote, monkeypatch):
    path, kind = write_hdf5(tmp_path, image=IMAGES)
    copies, make = [], tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: copies.append(make()) or copies[-1])
    problem = pytest.raises(SourceError, match=f"{path.name}: cannot be read")
    with serve(tmp_path, drops=lambda tries: True) as served, problem:
        kind(f"{served.url}/{path.name}", attempts=1)
    assert [copy.closed for copy in copies] == [True]


def test_a_copy_that_finds_no_space_is_an_error_that_says_where(tmp_path, remote):
    path, kind = write_hdf5(tmp_path, image=IMAGES)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serve(tmp_path) as served:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # like a full disk
        try:
            with pytest.raises(SourceError, match=r"cannot be copied to .* \(TMPDIR\): File too"):
                kind(f"{served.url}/{path.name}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_nothing_stays_open(tmp_path):
    path, kind = write_hdf5(tmp_path, image=IMAGES)
    with nothing_left_behind():
        dataset = kind(path)
        with nothing_left_behind():  # so that a fork inherits nothing
            pass
        list(DataLoader(dataset, places="cpu", batch_size=20))
        dataset.close()
