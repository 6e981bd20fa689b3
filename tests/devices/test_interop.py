"""Outputs: a framework's tensors lie in the slot itself, stay valid while they are held, and are in order."""

import gc
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpuloader import DataLoader, PlaceError, Ragged, TensorDataset
from gpuloader.devices import cuda, cuda_device
from gpuloader.devices.host import HostDevice
from gpuloader.devices.outputs import CopiedOutput, open_output
from gpuloader.devices.places import CUDAPlace, open_device
from gpuloader.errors import LoaderError
from gpuloader.foreign import ForeignStream
from gpuloader.testing import simulated_places
from gpuloader.transforms import Cast, Pad
from tests.fakes import nothing_left_behind
from tests.fakes_cuda import as_host, install_framework, read
from tests.loading import read_batches

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]
NARROW = {"int64": "int32", "float64": "float32", "complex128": "complex64"}  # by default, in JAX
PAIRS = [[2 * one, 2 * one + 1] for one in range(20)]

# Paddle warns about a missing compiler cache when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:No ccache found:UserWarning")


def pointer(name, tensor):
    return tensor.unsafe_buffer_pointer() if name == "jax" else tensor.data_ptr()


def as_numpy(tensor):
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)


def numbers(count=40, dtype="float32", width=64):
    """Return rows filled with their row number; each has at least 64 bytes."""
    return np.repeat(np.arange(count)[:, None], width, 1).astype(dtype)


@pytest.fixture(params=["torch", "jax", "paddle"])
def name(request):
    """The name of a framework that is installed."""
    pytest.importorskip(request.param)
    return request.param


class TestOnAHost:
    def test_a_batch_lies_in_the_slot(self, name):
        loader = DataLoader(numbers(), places="cpu", batch_size=4, output=name, use_buffer_reader=False)
        pointers = []
        for number, batch in enumerate(loader):
            assert as_numpy(batch)[:, 0].tolist() == list(range(4 * number, 4 * number + 4))
            pointers.append(pointer(name, batch))
            del batch
        [buffers] = loader._epochs._idle
        buffers.ring.drain()
        addresses = {slot.address for slot in buffers.ring._free}
        assert len(addresses) == buffers.ring.count
        assert set(pointers) <= addresses
        assert len(set(pointers)) <= 3  # the slots are reused

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtypes(self, name, dtype):
        wanted = numbers(6, dtype)
        loader = DataLoader(TensorDataset(wanted), places="cpu", batch_size=6, output=name)
        [[tensor]] = loader
        narrow = NARROW.get(dtype, dtype) if name == "jax" else dtype
        assert str(tensor.dtype).removeprefix("torch.").removeprefix("paddle.") == narrow
        np.testing.assert_array_equal(as_numpy(tensor), wanted.astype(narrow))
        if narrow == dtype:
            loader._epochs._idle[0].ring.drain()
            assert pointer(name, tensor) not in {slot.address for slot in loader._epochs._idle[0].ring._free}

    def test_dtypes_of_jax_itself(self, name):
        if name != "jax":
            pytest.skip("they are JAX's")
        jax = sys.modules["jax"]
        wanted = jax.numpy.arange(6, dtype="bfloat16")
        [batch] = DataLoader(list(wanted), places="cpu", batch_size=6, output=name)
        assert isinstance(batch, jax.Array)
        assert (batch.dtype, batch.tolist()) == (wanted.dtype, wanted.tolist())

    def test_a_batch_of_jax_is_bound_to_no_device(self, name):
        """A compiled function takes it together with arrays that are divided among several devices."""
        if name != "jax":
            pytest.skip("no other library binds arrays")
        own = sys.modules["jax"].numpy.arange(6, dtype="bfloat16")
        for dataset in (numbers(), list(own)):
            for batch in DataLoader(dataset, places="cpu", batch_size=4, output=name):
                assert not batch.committed

    def test_what_is_kept_stays(self, name):
        """Kept batches, their views and results outlive later batches, the epoch and the loader."""
        with nothing_left_behind():
            list(DataLoader(numbers(), places="cpu", batch_size=4, output=name))
            gc.collect()
        loader = DataLoader(numbers(60), places="cpu", batch_size=3, output=name)
        kept = [(batch, batch[1:], batch + 0) for _ in range(2) for batch in loader]
        kept = [entry if number % 3 else (None, *entry[1:]) for number, entry in enumerate(kept)]
        del loader
        gc.collect()
        for number, tensors in enumerate(kept):
            first = number % 20 * 3
            for tensor, rows in zip(tensors, ([0, 1, 2], [1, 2], [0, 1, 2]), strict=True):
                if tensor is not None:
                    wanted = np.repeat(np.array(rows)[:, None] + first, 64, 1)
                    np.testing.assert_array_equal(as_numpy(tensor), wanted)

    @pytest.mark.parametrize(
        ("samples", "step", "level"),
        [
            ([[1, 2, 3], [4], []], (), 1),
            ([[[1, 2], [3, 4]], [[5, 6]]], (2,), 1),
            ([[[1], [2, 3]], [], [[4, 5, 6]]], (), 2),
            ([[], []], (), 1),
            ([], (3,), 1),
        ],
    )
    def test_rows_of_varying_length_are_padded_as_on_the_host(self, name, samples, step, level):
        for dtype in ("float32", "uint16") if name == "torch" else ("float32",):
            rows = Ragged.from_samples(samples, dtype, step, level)
            values, *splits = open_output(name, HostDevice()).convert([rows.values, *rows.row_splits], None)
            for options in ({}, {"side": "left"}, {"side": "left", "multiple": 4}):
                padded = Ragged(values, tuple(splits)).to_padded(7, **options)
                assert (type(padded), padded.dtype) == (type(values), values.dtype)
                np.testing.assert_array_equal(as_numpy(padded), rows.to_padded(7, **options), strict=True)

    @pytest.mark.parametrize("level", [1, 2])
    def test_rows_are_selected_as_on_the_host(self, name, level):
        samples = [[[1], [2, 3]], [], [[4, 5, 6]], [[7], []]]
        samples = samples if level == 2 else [[1, 2, 3], [], [4, 5], [6]]
        rows = Ragged.from_samples(samples, "float32", (), level)
        values, *splits = open_output(name, HostDevice()).convert([rows.values, *rows.row_splits], None)
        there = Ragged(values, tuple(splits))
        for index in (0, -1, slice(1, 3), slice(None, None, -2), [2, 0, 0], [True, False, True, False], []):
            here, found = rows[index], there[index]
            assert type(here) is Ragged if level == 2 or not isinstance(index, int) else np.ndarray
            if isinstance(here, Ragged):
                here, found = ([one.values, *one.row_splits] for one in (here, found))
                assert all(type(one) is type(values) for one in found)
                assert all(map(np.array_equal, map(as_numpy, found), here))
            else:
                np.testing.assert_array_equal(as_numpy(found), here)
        assert [len(row) for row in there] == [len(sample) for sample in samples]
        assert as_numpy(there.lengths).tolist() == [len(sample) for sample in samples]
        assert "int32" in str(there.cu_seqlens.dtype)
        assert as_numpy(there.cu_seqlens).tolist() == rows.row_splits[-1].tolist()

    def test_rows_make_a_nested_tensor_of_pytorch(self, name):
        samples = [np.arange(n + 1, dtype=np.float32) for n in range(3)]
        [batch] = DataLoader(samples, places="cpu", batch_size=3, output=name, ragged=["0"])
        if name != "torch":
            with pytest.raises(TypeError, match="made of PyTorch tensors with one level"):
                batch.to_nested()
            return
        nested = batch.to_nested()
        assert [row.tolist() for row in nested.unbind()] == [sample.tolist() for sample in samples]
        assert nested.values().data_ptr() == batch.values.data_ptr()
        assert nested.to_padded_tensor(-1.0).tolist() == batch.to_padded(-1).tolist()

    def test_nested_fields_and_ragged_ones(self, name):
        words = [np.arange(n + 1, dtype=np.float32) for n in range(3)]
        samples = [{"words": words[n], "meta": (np.float32(n), f"n{n}")} for n in range(3)]
        options = {"places": "cpu", "batch_size": 3, "output": name, "ragged": ["words"]}
        [batch] = DataLoader(samples, **options)
        assert type(batch["words"]) is Ragged
        assert len(batch["words"]) == 3
        assert as_numpy(batch["words"].values).tolist() == [0, 0, 1, 0, 1, 2]
        assert as_numpy(batch["words"].row_splits[0]).tolist() == [0, 1, 3, 6]
        padded = batch["words"].to_padded(-1)
        assert type(padded) is type(batch["words"].values)
        assert as_numpy(padded).tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
        meta, names = batch["meta"]
        assert as_numpy(meta).tolist() == [0, 1, 2]
        assert names == ["n0", "n1", "n2"]
        assert type(batch["words"].values) is type(meta)
        steps = [Pad("words", 3, fill=-1), Cast("words", "int32")]
        [batch] = DataLoader(samples, transforms=steps, **options)
        assert as_numpy(batch["words"]).tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
        assert "int32" in str(batch["words"].dtype)

    def test_of_workers_several_places_and_a_generator(self, name):
        options = {"batch_size": 4, "output": name, "num_workers": 2, "split": "shards"}
        loader = DataLoader(numbers(), places=["cpu"] * 2, **options)
        found = [as_numpy(part)[:, 0].tolist() for step in loader for part in step]
        assert found == PAIRS
        reader = read_batches(lambda: ([numbers(4) + n] for n in range(9)), output=name)
        for one, [batch] in enumerate(reader):
            np.testing.assert_array_equal(as_numpy(batch), numbers(4) + one)
            assert type(batch).__module__.startswith(("torch", "jax", "paddle"))

    def test_masks_are_tensors_of_their_own(self, name):
        options = {"batch_size": 5, "split": "shards", "uneven": "pad", "output": name}
        found = []
        for step in DataLoader(numbers(13), places=["cpu"] * 2, **options):
            for rows, mask in step:
                assert type(mask) is type(rows)
                found += as_numpy(rows)[as_numpy(mask)][:, 0].tolist()
                if name != "jax":
                    mask[:] = False  # the user may write to it
        assert found == list(range(13))

    def test_what_the_framework_does_not_take(self, name):
        loader = DataLoader(np.zeros((4, 2), np.longdouble), places="cpu", batch_size=2, output=name)
        with pytest.raises(LoaderError, match=r"not accept an array of dtype \w*float\w* and shape \(2, 2\)"):
            list(loader)

    def test_a_tensor_may_be_written_to(self, name):
        """The user owns the tensor: writing to it changes neither the dataset nor a later batch."""
        if name == "jax":
            pytest.skip("JAX's arrays cannot be written to")
        rows = numbers(8)
        for _ in range(3):
            for number, batch in enumerate(DataLoader(rows, places="cpu", batch_size=2, output=name)):
                assert as_numpy(batch)[:, 0].tolist() == [2 * number, 2 * number + 1]
                batch[:] = -1
        assert (rows >= 0).all()


class TestNative:
    @pytest.mark.parametrize(
        ("output", "places", "message"),
        [
            ("cupy", "cpu", "output='cupy' is for batches on a GPU; these land on cpu"),
            ("numpy", simulated_places(1), "'numpy' is for batches on a CPU place; these land on simul"),
            ("torch", simulated_places(1), "for batches on a CPU place or GPU; these land on simulated:0"),
        ],
    )
    def test_wrong_pairs(self, output, places, message):
        with pytest.raises(PlaceError, match=message):
            DataLoader(numbers(), places=places, output=output)

    def test_an_unknown_word(self):
        message = "output must be one of 'numpy', 'cupy', 'torch', 'jax', 'paddle' or None, got 'tensorflow'"
        with pytest.raises(ValueError, match=message):
            DataLoader(numbers(), places="cpu", output="tensorflow")
        with pytest.raises(ValueError, match="output must be one of"):
            DataLoader.from_generator(capacity=1, output=3)

    def test_a_framework_that_is_missing(self, monkeypatch):
        for name, package in (("torch", "torch"), ("jax", "jax"), ("paddle", "paddlepaddle")):
            monkeypatch.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=f"'{name}' needs {name}.*pip install {package}") as caught:
                DataLoader(numbers(), places="cpu", output=name)
            assert caught.value.name == name


class Stream:
    def __init__(self, ptr, version=0):
        self.ptr, self.version = ptr, version

    def __cuda_stream__(self):
        return self.version, self.ptr


class TestStreams:
    @pytest.mark.parametrize("stream", [Stream(7), lambda: Stream(7), Stream(np.uint64(7))])
    def test_that_are_streams_are_kept_as_long_as_they_are_used(self, stream):
        """A stream's handle is valid only as long as the stream lives."""
        found = open_output(None, HostDevice(), stream).stream()
        assert (type(found), found.ptr, type(found.owner)) == (ForeignStream, 7, Stream)

    def test_a_function_is_asked_each_time(self):
        streams = [Stream(1), Stream(2**63), 7]
        output = open_output(None, HostDevice(), lambda: streams.pop(0))
        assert [output.stream().ptr for _ in range(2)] == [1, 2**63]
        with pytest.raises(TypeError, match="int is not a CUDA stream"):
            output.stream()

    @pytest.mark.parametrize(
        ("stream", "message"),
        [
            (7, "stream must have __cuda_stream__, or be a function that returns such a stream, got int"),
            (Stream(7, version=1), "Stream implements version 1 of __cuda_stream__, expected version 0"),
            (Stream("seven"), "is not a CUDA stream"),
            (SimpleNamespace(__cuda_stream__=lambda: 7), "SimpleNamespace is not a CUDA stream"),
            (SimpleNamespace(__cuda_stream__=7), "SimpleNamespace is not a CUDA stream"),
        ],
    )
    def test_that_are_none(self, stream, message):
        with pytest.raises(TypeError, match=message):
            DataLoader(numbers(), places="cpu", stream=stream)


class Tensor:
    def __init__(self, array):
        self.array = array
        self.nbytes = array.nbytes


class Copy:
    """JAX's copy: made at a later time, from memory that must still be valid."""

    def __init__(self, source, runtime):
        self.source, self.runtime, self.ready = source, runtime, False
        self.values = None
        self.donated = False

    def make(self):
        self.values, self.ready = read(self.source().array), True

    def is_deleted(self):
        return self.donated

    def is_ready(self):
        if self.donated:
            raise RuntimeError("Array has been deleted with shape=int64[2,5].")
        return self.ready


@pytest.fixture(params=["torch", "paddle"])
def fake_framework(request, monkeypatch, runtime):
    """The name of a framework that fake modules stand for, and its current stream for each device."""
    current = {}
    install_framework(monkeypatch, request.param, Tensor, lambda index: current[index].ptr)
    return SimpleNamespace(name=request.param, current=current)


def log_calls(monkeypatch, name):
    calls = []
    original = getattr(cuda_device.CudaCalls, name)

    def call(self, *arguments):
        calls.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(cuda_device.CudaCalls, name, call)
    return calls


def use_two_devices(runtime, framework):
    """Give the fake framework a current stream on each of two devices."""
    runtime.devices = 2
    for index in (0, 1):
        with cuda.cupy.cuda.Device(index):
            framework.current[index] = cuda.cupy.cuda.Stream(non_blocking=True)


def padded(output):
    """Return a loader of 13 rows in shards of two devices, the last of which end in padding."""
    options = {"batch_size": 5, "split": "shards", "uneven": "pad", "use_buffer_reader": False}
    rows = TensorDataset(numbers(13))
    return DataLoader(rows, places=["gpu:0", "gpu:1"], output=output, **options)


def count_unmasked(seen):
    """Return the numbers of the rows that their masks count; both come as lists with one array."""
    return [int(number) for [rows], [mask] in seen for number in rows[mask][:, 0]]


class TestOnAGpu:
    def test_the_frameworks_stream_waits_and_releases(self, runtime, fake_framework, monkeypatch):
        use_two_devices(runtime, fake_framework)
        waits, records = log_calls(monkeypatch, "wait"), log_calls(monkeypatch, "record")
        options = {"batch_size": 2, "output": fake_framework.name, "use_buffer_reader": False}
        loader = DataLoader(numbers(), places=["gpu:0", "gpu:1"], **options)
        seen = []
        for step in loader:
            for index, tensor in enumerate(step):
                assert type(tensor) is Tensor
                assert tensor.array.device.id == index
                seen.append(runtime.launch_read(tensor.array, fake_framework.current[index].ptr))
            del step, tensor
        runtime.finish()
        assert [values[0][:, 0].tolist() for values in seen] == PAIRS
        own = {stream.ptr for stream in fake_framework.current.values()}
        copying = {lane._copy_stream.ptr for lane in loader._epochs._idle[0].lanes}
        assert {stream.ptr for stream, _ in waits} == own | copying
        assert sum(stream.ptr in own for stream, _ in waits) == 20  # each waits for `ready`
        assert sum(stream.ptr in own for _, stream in records) == 20  # each records `released`

    def test_paddle_without_cuda_is_refused(self, runtime, monkeypatch):
        """Its function for the current stream ends the process."""
        paddle = install_framework(monkeypatch, "paddle", Tensor, lambda _: pytest.fail("Paddle crashes"))
        paddle.is_compiled_with_cuda = lambda: False
        with pytest.raises(PlaceError, match="this Paddle is built without CUDA; these land on gpu:0"):
            next(iter(DataLoader(numbers(), places="gpu:0", output="paddle")))

    def test_the_users_own_stream(self, runtime, fake_framework, monkeypatch):
        """The user's stream replaces the framework's, which is not even queried."""
        made = cuda.cupy.cuda.Stream(non_blocking=True)
        stream = Stream(made.ptr)
        waits = log_calls(monkeypatch, "wait")
        for output in (None, fake_framework.name):
            waits.clear()
            list(DataLoader(numbers(8), places="gpu:0", batch_size=2, output=output, stream=stream))
            assert sum(one.ptr == stream.ptr for one, _ in waits) == 4

    def test_the_stream_is_asked_for_at_every_batch(self, runtime, fake_framework, monkeypatch):
        streams = [cuda.cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
        records = log_calls(monkeypatch, "record")
        fake_framework.current[0] = streams[0]
        options = {"batch_size": 2, "output": fake_framework.name, "use_buffer_reader": False}
        epoch = iter(DataLoader(numbers(8), places="gpu:0", **options))
        for stream in streams:
            fake_framework.current[0] = stream
            tensor = next(epoch)
            del tensor
        list(epoch)
        own = {stream.ptr for stream in streams}
        assert [stream.ptr for _, stream in records if stream.ptr in own] == [one.ptr for one in streams]

    def test_a_stream_is_one_object_as_long_as_its_handle_stays(self, runtime, fake_framework):
        """So a slot needs no second event for it."""
        fake_framework.current[0] = cuda.cupy.cuda.Stream(non_blocking=True)
        output = open_output(fake_framework.name, open_device(CUDAPlace(0)))
        assert output.stream() is output.stream()

    def test_masks_lie_with_their_batch(self, runtime, fake_framework):
        """On its device, in order on the framework's stream, and not shared with another batch."""
        use_two_devices(runtime, fake_framework)
        seen, kept = [], []
        for step in padded(fake_framework.name):
            for index, (rows, mask) in enumerate(step):
                assert type(mask) is Tensor
                assert mask.array.device.id == index
                streams = fake_framework.current[index].ptr
                seen.append([runtime.launch_read(one.array, streams) for one in (rows, mask)])
            kept.append(step)
            del step, rows, mask
        pointers = {mask.array.data.ptr for step in kept for _, mask in step}
        assert len(pointers) == 2 * len(kept)
        kept.clear()
        runtime.finish()
        assert count_unmasked(seen) == list(range(13))

    def test_masks_of_cupy_are_each_batchs_own(self, runtime):
        runtime.devices = 2
        kept = []
        for step in padded(None):
            runtime.finish()
            for index, (rows, mask) in enumerate(step):
                assert mask.device.id == rows.device.id == index
                kept.append([[read(rows)], [read(mask).copy()]])
                as_host(mask)[:] = False  # the user may write to it
        assert count_unmasked(kept) == list(range(13))


class TestJaxOnAGpu:
    @pytest.fixture
    def copies(self, runtime, monkeypatch):
        made, arrived = [], []

        def array(source, copy):
            assert copy is True
            arrived.append(read(source.array).copy())  # JAX's stream does not wait for ours
            made.append(Copy(lambda: source, runtime))
            return made[-1]

        module, dlpack = ModuleType("jax"), ModuleType("jax.dlpack")
        module.numpy = SimpleNamespace(array=array)

        def from_dlpack(exported):
            """Import an array as JAX does, which has it ordered on a stream of its own."""
            kind, index = exported.__dlpack_device__()
            tensor = Tensor(exported.__dlpack__(stream=7))
            assert (kind, index) == (2, tensor.array.device.id)
            return tensor

        dlpack.from_dlpack = from_dlpack
        monkeypatch.setitem(sys.modules, "jax", module)
        monkeypatch.setitem(sys.modules, "jax.dlpack", dlpack)
        yield made
        for copy, values in zip(made, arrived, strict=True):
            if copy.ready:
                np.testing.assert_array_equal(copy.values, values)

    def test_sources_stay_until_they_are_copied(self, runtime, copies):
        """Copies that run as late as possible see their own batch, although the user keeps none."""
        loader = DataLoader(numbers(), places="gpu:0", batch_size=2, output="jax")
        for number, copy in enumerate(loader):
            assert type(copy) is Copy
            if number >= 6:
                copies[number - 6].make()
            del copy
        for copy in copies[-6:]:
            copy.make()
        assert [copy.values[:, 0].tolist() for copy in copies] == PAIRS

    def test_slots_return_when_they_are_copied(self, runtime, copies):
        loader = DataLoader(numbers(), places="gpu:0", batch_size=2, output="jax")
        for copy in loader:
            copy.make()
            copy.source = None
            del copy
        assert runtime.calls["malloc"] <= 4
        output = loader._epochs.delivery.outputs[0]
        assert type(output) is CopiedOutput
        assert len(output._in_flight) == 1

    def test_steps_may_consume_their_batches(self, runtime, copies):
        """A donated array is deleted when the step is called, which is before the copy has run."""
        loader = DataLoader(numbers(), places="gpu:0", batch_size=2, output="jax")
        donated = []
        for number, copy in enumerate(loader):
            copy.donated = True
            donated.append(copy)
            if number >= 3:  # the device is three steps behind
                for made in copies[: copies.index(donated[number - 3]) + 1]:
                    if not made.ready:
                        made.make()
                        made.source = None
            del copy
        assert [copy.values[:, 0].tolist() for copy in donated[:-3]] == PAIRS[:-3]
        assert runtime.calls["malloc"] <= 10  # the slots return

    def test_one_pointer_is_asked_about_per_array_and_no_event_made(self, runtime, copies, monkeypatch):
        """CuPy's export asks about the pointer; what JAX asks besides is answered without CUDA."""
        asked = []
        monkeypatch.setattr(cuda.cupy.ndarray, "__dlpack_device__", asked.append, raising=False)
        list(DataLoader(TensorDataset(numbers(), numbers()), places="gpu:0", batch_size=2, output="jax"))
        assert len(copies) == 40
        assert not asked

    def test_masks_are_copied_like_fields(self, runtime, copies):
        runtime.devices = 2
        seen = []
        for step in padded("jax"):
            for index, (rows, mask) in enumerate(step):
                assert rows.source().array.device.id == mask.source().array.device.id == index
                for one in (rows, mask):
                    one.make()
                seen.append([[rows.values], [mask.values]])
        assert count_unmasked(seen) == list(range(13))
