"""Parcels: every value comes back, arrays are shared until written, and errors say why a value cannot go."""

import copyreg
import errno
import fcntl
import functools
import gc
import io
import itertools
import mmap
import multiprocessing
import os
import pickle
import sys
import tempfile
import threading
import weakref
from collections import namedtuple
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_dtypes, array_shapes, arrays, basic_indices, scalar_dtypes

from gpuloader.errors import StagingMemoryError
from gpuloader.fetch.processes import shipping
from gpuloader.fetch.processes.shipping import Unshippable, names_module, pack, unpack
from gpuloader.system import platforms
from tests.fakes import no_other_collection, nothing_left_behind, segments
from tests.fetch.faulty import run_program

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")

BIG = 200_000  # elements of an array that is stored outside the pickle, with any dtype
Pair = namedtuple("Pair", "image label")


@pytest.fixture(params=["pickle", "cloudpickle"])
def pickler(request, monkeypatch):
    """Run a test with and without cloudpickle; arrays, mapped files and memory do not depend on it."""
    if request.param == "cloudpickle":
        pytest.importorskip("cloudpickle")
    else:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
    return request.param


def parcel_of(value):
    return closing(pack(value))


def ship(value):
    with parcel_of(value) as parcel:
        return unpack(parcel.descriptor)


def in_band(value):
    """Return the bytes of a value's pickle, without the memory of its arrays."""
    sink = io.BytesIO()
    shipping.dump(value, sink)
    return sink.tell()


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)


class Holder:
    """A dataset with arbitrary attributes."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


# round trips


def test_plain_objects_and_those_with_arrays_come_back(pickler):
    values = [None, "text", [1, [2.5, None], {"a": (True, b"x")}], {1, 2}, Pair([1], "cat"), b"x" * 300_000]
    assert ship(values) == values
    holder = Holder(images=np.random.default_rng(3).random((100, 28, 28)), labels=np.arange(100), name="a")
    one, other = ship([holder, holder])
    assert one is other
    assert same(one.images, holder.images)
    assert same(one.labels, holder.labels)
    assert one.name == "a"


ARRAYS = {
    "C": lambda: np.arange(BIG, dtype=np.float32).reshape(100, -1),
    "Fortran": lambda: np.asfortranarray(np.arange(BIG).reshape(100, -1)),
    "transposed axes": lambda: np.arange(BIG).reshape(10, 20, -1).transpose(0, 2, 1),
    "columns of bytes": lambda: np.arange(2 * BIG).astype("u1").reshape(-1, 2)[:, ::-1],
    "rows of two bytes": lambda: np.arange(2 * BIG).astype("u1").reshape(-1, 2),
    "one strided row": lambda: np.arange(2 * BIG).reshape(1, -1)[:, ::2],
    "broadcast": lambda: np.broadcast_to(np.arange(200), (1000, 200)),
    "0-d": lambda: np.array(3.5),
    "0-d large": lambda: np.array("x" * BIG),
    "empty": lambda: np.empty((0, 3), np.int16),
    "empty of large rows": lambda: np.empty((0, BIG)),
    "dates": lambda: np.arange(BIG).astype("M8[s]"),
    "text": lambda: np.full(BIG, "word"),
    "bytes": lambda: np.full(BIG, b"word"),
    "void": lambda: np.zeros(BIG, "V3"),
    "structured": lambda: np.ones(BIG, [("a", "<f4"), ("b", "u1", (3,)), ("t", "M8[D]")]),
    "strided field": lambda: np.ones(BIG, [("a", "<f4"), ("b", "u1")])["a"],
    "objects": lambda: np.array([1, "a", None, np.arange(3).sum()], object),
    "structured objects": lambda: np.array([(1, "a")] * 100, [("n", "i4"), ("o", "O")]),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_arrays_come_back(make):
    array = make()
    back = ship({"array": array})["array"]
    assert type(back) is np.ndarray
    assert same(back, array)
    if array.nbytes > shipping.OUT_OF_BAND and not array.dtype.hasobject:
        assert in_band(array) < 1000
        if array.flags.forc:
            assert back.strides == array.strides


def test_small_arrays_stay_in_the_pickle_and_large_ones_are_aligned_to_256_bytes():
    limit = shipping.OUT_OF_BAND
    arrays = [np.full(size, 7, np.uint8) for size in (limit - 1, limit, 1, limit + 1)]
    back = ship(arrays)
    assert all(map(same, arrays, back))
    assert not any(one.ctypes.data % 256 for one in back[1::2])
    assert in_band(arrays[0]) > limit - 1
    assert in_band(arrays[1]) < 1000


def test_repeated_elements_are_shipped_once():
    series = np.arange(BIG)
    windows = np.lib.stride_tricks.sliding_window_view(series, 1000)  # 1.6 GB if it were written out
    weights = np.broadcast_to(np.float32(2), (10**9, 5))
    with parcel_of([series, windows, weights, series[::-1], series.reshape(2, -1).T]) as parcel:
        assert parcel.nbytes < 1.1 * series.nbytes
        back = unpack(parcel.descriptor)
    assert same(back[1][-1], windows[-1])
    assert back[2].shape == (10**9, 5)
    assert back[2][-1, -1] == 2
    assert np.shares_memory(back[0], back[3])
    assert same(back[4], series.reshape(2, -1).T)


@given(data=st.data(), write=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_view_of_any_array_comes_back(data, write):
    """Even small arrays are stored outside the pickle here."""
    array = data.draw(arrays(scalar_dtypes() | array_dtypes(), array_shapes(min_dims=0, max_dims=4)))
    if array.ndim > 1:
        array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    view = data.draw(
        st.just(array) | basic_indices(array.shape, allow_newaxis=True).map(lambda at: array[at])
    )
    if not isinstance(view, np.ndarray):
        return
    view.flags.writeable = write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipping, "OUT_OF_BAND", 1)
        back = ship([view, view.T])
    for one, other in zip(back, [view, view.T], strict=True):
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
        if view.size:  # NumPy pickles empty ones, some with the machine's byte order
            assert one.dtype == other.dtype
            assert one.flags.writeable == write


class Tagged(np.ndarray):
    pass


class Verbose(np.ndarray):
    def __reduce__(self):
        return np.ndarray.__reduce__(self)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((300, 300)).view(Tagged),
        np.zeros((300, 300)).view(Verbose),
        np.zeros((300, 600))[:, ::2].view(Tagged),
        np.ones((300, 300)).view(np.matrix),
        np.ones(BIG, [("a", "f4"), ("b", "u1")]).view(np.recarray),
        np.ma.masked_greater(np.arange(BIG), 100),
    ],
    ids=["Tagged", "Verbose", "strided", "matrix", "recarray", "masked"],
)
def test_subclasses_of_arrays_come_back_as_they_are(array, pickler):
    back = ship(array)
    assert type(back) is type(array)
    assert same(back, array)
    assert np.array_equal(np.ma.getmaskarray(back), np.ma.getmaskarray(array))


def test_a_registered_way_of_pickling_is_respected(monkeypatch, pickler):
    monkeypatch.setitem(copyreg.dispatch_table, Tagged, lambda array: (int, (7,)))
    assert ship(np.zeros(BIG).view(Tagged)) == 7


class Blob(Holder):
    """An object that is not an array and pickles its memory as a buffer."""

    def __reduce_ex__(self, protocol):
        return bytes, (pickle.PickleBuffer(self.memory),)


@pytest.mark.parametrize(
    "memory", [b"x" * 10, b"x" * 100_000, bytearray(b"x" * 100_000), np.ones((2, BIG)).T]
)
def test_other_buffers_come_back(memory, pickler):
    assert ship(Blob(memory=memory)) == bytes(memory.T if isinstance(memory, np.ndarray) else memory)
    assert in_band(Blob(memory=memory)) < 1000


def test_arrays_over_the_same_memory_go_once_and_still_share_it():
    array = np.arange(BIG)
    with parcel_of([array, array.reshape(2, -1), array[:], array[::2], array[::2]]) as parcel:
        assert parcel.nbytes < array.nbytes * 1.6
        back = unpack(parcel.descriptor)
    back[0][0] = 99
    assert back[1][0, 0] == back[2][0] == 99
    assert np.shares_memory(back[3], back[4])


# the file


def test_the_file_can_neither_be_written_nor_resized():
    with parcel_of(np.zeros(BIG)) as parcel:
        assert os.fstat(parcel.descriptor).st_size == parcel.nbytes
        assert not os.get_inheritable(parcel.descriptor)
        with pytest.raises(PermissionError):
            os.pwrite(parcel.descriptor, b"x", 0)
        for nbytes in (0, parcel.nbytes * 2):
            with pytest.raises(PermissionError):
                os.ftruncate(parcel.descriptor, nbytes)
        with pytest.raises(PermissionError):
            mmap.mmap(parcel.descriptor, parcel.nbytes)
        with pytest.raises(PermissionError):
            fcntl.fcntl(parcel.descriptor, 1033, 0x10)


def private_and_proportional(array):
    """Return the private, proportional and resident kilobytes of this process's mapping of an array."""
    sizes, inside = {}, False
    for name, size, *_ in map(str.split, Path("/proc/self/smaps").read_text().splitlines()):
        if "-" in name:
            first, last = (int(part, 16) for part in name.split("-"))
            inside = first <= array.ctypes.data < last
        elif inside:
            sizes[name] = int(size) if size.isdecimal() else 0
    return sizes["Private_Clean:"] + sizes["Private_Dirty:"], sizes["Pss:"], sizes["Rss:"]


def test_processes_share_the_pages_and_not_their_writes():
    def work():
        array = unpack(parcel.descriptor)
        array.sum()
        together.wait(60)
        shared = private_and_proportional(array)
        together.wait(60)  # pages of a process that has ended already are the other's alone
        array[: 1 << 17] += os.getpid()
        answers.put((shared, int(array[0]) == os.getpid(), int(array.sum()) == os.getpid() << 17))

    context = multiprocessing.get_context("fork")
    together, answers, array = context.Barrier(2), context.SimpleQueue(), np.zeros(1 << 20, np.int64)
    with parcel_of(array) as parcel:
        processes = [context.Process(target=work) for _ in range(2)]
        for process in processes:
            process.start()
        for (private, proportional, resident), *writes in (answers.get() for _ in processes):
            assert resident > array.nbytes >> 10
            assert private < resident / 20
            assert proportional < resident * 0.6
            assert all(writes)
        for process in processes:
            process.join()
        assert unpack(parcel.descriptor).sum() == 0


def test_nothing_is_left_behind():
    gc.collect()  # what tests before this one left to the collector
    before = len(segments())
    with nothing_left_behind():
        with parcel_of(np.zeros(BIG)) as parcel:
            assert parcel.descriptor >= 0
            parcel.close()
        assert parcel.descriptor == -1
        pack(np.zeros(BIG))  # closed by the collector
        view = ship(np.zeros(BIG))[5:10]
        assert view.sum() == 0
        assert len(segments()) == before + 1
        del view
        gc.collect()
        assert len(segments()) == before


def test_pickling_keeps_nothing_alive(pickler):
    holder = Holder(array=np.zeros(BIG))
    gone = weakref.ref(holder)
    with no_other_collection():
        pack(holder).close()
        del holder
        assert gone() is None


# mapped files


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "numbers.bin"
    np.arange(BIG, dtype=np.int64).tofile(path)
    return path


def protect(array):
    """Return a view that cannot be written to, whatever can be done to the file."""
    view = array[:10]
    view.flags.writeable = False
    return view


VIEWS = {
    "whole": lambda a: a,
    "slice": lambda a: a[1000:BIG],
    "strided": lambda a: a[7:900:3],
    "backwards": lambda a: a[::-1],
    "reshaped": lambda a: a.reshape(2, -1).T,
    "Fortran": lambda a: a.reshape(2, -1, order="F"),
    "bytes": lambda a: a.view(np.uint8)[5:70_000],
    "array": lambda a: np.asarray(a)[3:],
    "0-d": lambda a: a[3:4].reshape(()),
    "back and forth": lambda a: np.asarray(a).view(np.memmap),
    "subclass": lambda a: a.view(Tagged)[5:],
    "protected": protect,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_mapped_files_are_mapped_again(file, view):
    for mode, offset in itertools.product(("r", "r+", "c"), (0, 16, 40_000)):
        array = view(np.memmap(file, np.int64, mode, offset=offset, shape=BIG - offset // 8))
        with parcel_of({"array": array}) as parcel:
            assert parcel.nbytes < 2000
            back = unpack(parcel.descriptor)["array"]
        assert type(back) is type(array)
        assert same(back, array)
        assert back.strides == array.strides
        assert back.flags.writeable == array.flags.writeable
        if isinstance(back, np.memmap):
            assert (back.filename, back.mode) == (str(file), mode)
        again = ship(back)  # a worker may start workers too
        assert same(again, array)
        assert in_band(back) < 2000


def test_a_mapping_is_shared_by_all_its_views(file):
    array = np.memmap(file, np.int64, "r")
    rows = [array[start : start + 100] for start in range(0, BIG, 100)]
    with nothing_left_behind():
        with parcel_of(rows) as parcel:
            before = len(os.listdir("/proc/self/fd"))
            back = unpack(parcel.descriptor)
            assert len(os.listdir("/proc/self/fd")) <= before + 2
        assert all(map(same, rows, back))
        del back


def test_writes_to_a_writable_mapping_reach_the_file_which_is_not_emptied_again(tmp_path):
    array = np.memmap(tmp_path / "new", np.float32, "w+", shape=(10, 10))
    array[:] = 3
    back = ship(array)
    assert (back.mode, back.sum()) == ("r+", 300)
    back[0] = 77
    back.flush()
    assert (array[0] == 77).all()


def test_mapped_memory_without_a_file_goes_as_an_array(tmp_path, file):
    with tempfile.TemporaryFile() as nameless:
        anonymous = np.memmap(nameless, np.int64, "w+", shape=BIG)
    anonymous[:] = 5
    deleted = np.memmap(file, np.int64, "r")
    file.unlink()
    computed = deleted + 1
    copied = deleted.copy()
    frombuffer = np.frombuffer(mmap.mmap(-1, BIG), np.uint8)
    for array in (anonymous, deleted, computed, copied, frombuffer, deleted[:0]):
        assert in_band(array) < 1000
        back = ship(array)
        assert type(back) is type(array)
        assert same(back, array)


# what cannot go


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (threading.Lock(), r"lock cannot be pickled \(TypeError: cannot pickle '_thread.lock'"),
        (Holder(a=np.zeros(BIG), parts=[1, {"lock": threading.Lock()}]), r"\.parts\[1\]\['lock'\] cannot"),
        ((i for i in "ab"), "generator cannot be pickled"),
        (functools.reduce(lambda inner, _: [inner], range(100_000), []), "list"),
    ],
    ids=["itself", "part", "generator", "endless nesting"],
)
def test_what_cannot_be_pickled_says_which_part(value, reason, pickler):
    with nothing_left_behind(), pytest.raises(Unshippable, match=reason) as caught:
        pack(value)
    assert caught.value.__cause__ is not None


def test_open_files_stay_here(tmp_path, pickler):
    (tmp_path / "text").write_text("words")
    for mode in ("r", "rb"):
        reason = r"Holder\.handle cannot be pickled"
        with open(tmp_path / "text", mode) as handle, pytest.raises(Unshippable, match=reason):
            pack(Holder(handle=handle))


def test_closures_go_only_by_cloudpickle(pickler):
    offset = np.ones(BIG)
    holder = Holder(transform=lambda value: value + offset)
    if pickler == "cloudpickle":
        assert ship(holder).transform(1)[5] == 2
        assert in_band(holder) < 5000
    else:
        with pytest.raises(Unshippable, match=r"Holder\.transform cannot .*; install cloudpickle"):
            pack(holder)


class Raising:
    def __init__(self, error):
        self.error = error

    def __getstate__(self):
        raise self.error


@pytest.mark.parametrize("error", [ValueError("not now"), MemoryError(), KeyboardInterrupt()], ids=repr)
def test_whatever_pickling_raises_is_a_reason_unless_the_object_did_not_cause_it(error, pickler):
    expected = Unshippable if isinstance(error, ValueError) else type(error)
    with nothing_left_behind(), pytest.raises(expected) as caught:
        pack([Raising(error)])
    if expected is Unshippable:
        assert "ValueError: not now" in str(caught.value)
        assert caught.value.__cause__ is error


# limits


def test_the_search_for_a_module_ends_early(pickler):
    count = 0

    class Counted:
        def __reduce__(self):
            nonlocal count
            count += 1
            return bytes, (os.urandom(10_000),)

    assert not names_module([Counted() for _ in range(5000)], "numpy")
    assert count < 300
    assert names_module([Counted(), np.zeros(3)], "numpy")


def test_too_little_memory_is_an_error_before_anything_is_reserved(monkeypatch):
    monkeypatch.setattr(shipping, "_STEP", 1000)
    monkeypatch.setattr(platforms, "available_memory", lambda: 1_000_000)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: pytest.fail("reserved"))
    message = r"1,6\d\d,\d\d\d bytes .* only 1,000,000 bytes are available"
    with nothing_left_behind(), pytest.raises(StagingMemoryError, match=message):
        pack(np.zeros(BIG))
    monkeypatch.setattr(platforms, "available_memory", lambda: 500)
    with nothing_left_behind(), pytest.raises(StagingMemoryError, match="only 500 bytes"):
        pack(list(range(10_000)))  # in the middle of the pickle


def fail(number, *_):
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("name", ["posix_fallocate", "write"])
def test_a_system_that_has_no_more_is_an_error(monkeypatch, name):
    monkeypatch.setattr(os, name, partial(fail, errno.ENOSPC))
    with nothing_left_behind(), pytest.raises(StagingMemoryError, match="No space left"):
        pack(np.zeros(BIG))


def test_a_system_without_memory_files_has_files_without_a_name(monkeypatch):
    for name in ("memfd_create", "posix_fallocate"):
        monkeypatch.delattr(os, name)
    dataset = {"x": np.arange(300_000), "y": [1, "two"]}
    with nothing_left_behind():
        parcel = pack(dataset)
        assert os.fstat(parcel.descriptor).st_nlink == 0
        there = unpack(parcel.descriptor)
        assert there["y"] == dataset["y"]
        assert (there["x"] == dataset["x"]).all()
        parcel.close()
        del there


def test_a_memory_file_that_cannot_be_made_is_a_reason(monkeypatch):
    monkeypatch.setattr(os, "memfd_create", partial(fail, errno.EMFILE))
    with pytest.raises(Unshippable, match="Too many open files"):
        pack(1)


# the main module


MAIN = """
    import sys
    if {without!r}:
        sys.modules["cloudpickle"] = None
    import enum, numpy as np
    from gpuloader.fetch.processes.shipping import pack

    class Dataset:
        def __getitem__(self, index): return index
        @staticmethod
        def load(): pass

    class Color(enum.Enum):
        RED = 1

    def function(): pass

    values = [Dataset(), Dataset, [Color.RED], function, Dataset().__getitem__, Dataset.load, print,
              "__main__", {{"__main__": b"__main__"}}, np.zeros(100_000), np.sum, len]
    print(*[int(pack(value).needs_main) for value in values])
"""


def test_needs_main_is_told_from_names_not_from_text(pickler):
    code = MAIN.format(without=pickler == "pickle")
    done = run_program(code)
    assert done.returncode == 0, done.stderr
    expected = "1 1 1 1 1 1" if pickler == "pickle" else "0 0 0 0 0 0"
    assert done.stdout.split() == [*expected.split(), *"000000"]


def test_a_parcel_that_was_finalized_is_not_closed_again():
    """The garbage collector may finalize it before the pool that closes it."""
    parcel = pack([1])
    number = parcel.descriptor
    parcel.__del__()
    other = os.open(os.devnull, os.O_RDONLY)
    assert other == number
    try:
        parcel.close()
        os.fstat(other)
    finally:
        os.close(other)
