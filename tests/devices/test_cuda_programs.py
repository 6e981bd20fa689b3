"""Programs on the CUDA device, over the fake runtime, with twins in place of kernels."""

import gc

import numpy as np
import pytest

from gpuloader import DataLoader, StagingMemoryError, TensorDataset, cuda_places
from gpuloader.devices import cuda
from gpuloader.devices.places import CUDAPlace, open_device
from gpuloader.epoch import sending
from gpuloader.errors import LoaderError
from gpuloader.kernels.shuffle import shuffle
from gpuloader.transforms import Cast, Normalize, OneHot, RandomCropFlip
from gpuloader.transforms.program import KernelCall, Plain
from tests.devices.conformance import DeviceTests
from tests.fakes import nothing_left_behind
from tests.fakes_cuda import read
from tests.sample_sets import Made, assert_same

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

COUNT = 22
PICTURES = np.random.default_rng(0).integers(0, 256, (COUNT, 7, 6, 3), np.uint8)
LABELS = np.arange(COUNT) % 5
STEPS = [RandomCropFlip("0", (5, 4)), Normalize("0", std=0.5, scale=1 / 255), OneHot("1", 5)]


class TestCudaDevice(DeviceTests):
    """The conformance suite of all devices, without a GPU."""

    @pytest.fixture
    def device(self, runtime):
        return open_device(CUDAPlace(0))

    def read(self, device, array):
        return read(array)


def load(places="gpu:0", dataset=None, **options):
    dataset = TensorDataset(PICTURES, LABELS) if dataset is None else dataset
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "transforms": STEPS, **options}
    return DataLoader(dataset, places=places, **options)


def wanted(**options):
    return [[field.copy() for field in batch] for batch in load("cpu", **options)]


@pytest.mark.parametrize("cache", [None, "host", "device"])
@pytest.mark.parametrize("dataset", [None, Made(lambda index: (PICTURES[index], LABELS[index]), COUNT)])
def test_batches_are_those_of_a_host(runtime, cache, dataset):
    found = []
    for batch in load(dataset=dataset, cache=cache):
        assert all(type(field) is cuda.cupy.ndarray for field in batch)
        runtime.finish()
        found.append([read(field) for field in batch])
    assert_same(found, wanted())


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_step_of_shards_is_one_batch(runtime, cache):
    runtime.devices = 2
    found = []
    for step in load(cuda_places(), cache=cache, split="shards", uneven="pad", batch_size=6):
        assert [images.device.id for images, _, _ in step] == [0, 1]
        runtime.finish()
        masks = [read(mask) for *_, mask in step]
        parts = [[read(one)[mask] for one in part[:2]] for part, mask in zip(step, masks, strict=True)]
        found.append([np.concatenate(field) for field in zip(*parts, strict=True)])
    assert_same(found, wanted(batch_size=6))


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_batch_dropped_at_once_is_read_before_the_next_is_computed_there(runtime, cache):
    stream = cuda.cupy.cuda.Stream(non_blocking=True)
    loader = load(cache=cache, batch_size=2)
    with stream:
        seen = []
        for images, labels in loader:
            seen.append([runtime.launch_read(field, stream.ptr) for field in (images, labels)])
            del images, labels
    runtime.finish()
    assert_same([[values for [values] in batch] for batch in seen], wanted(batch_size=2))


@pytest.fixture
def sizes(runtime, monkeypatch):
    """Return a list of the bytes of each copy to a device."""
    found, copy = [], runtime.memcpyAsync
    monkeypatch.setattr(runtime, "memcpyAsync", lambda *given: (found.append(given[2]), copy(*given)))
    return found


def test_bytes_are_what_crosses_the_bus(runtime, sizes):
    list(load(drop_last=True))
    assert sizes == [512 + 256 + 4 * 3 * 4] * (COUNT // 4)  # 4 pictures of 126 bytes, 4 labels, 4 draws
    sizes.clear()
    list(load(drop_last=True, cache="device"))
    assert sorted(sizes) == sorted([PICTURES.nbytes, LABELS.nbytes] + [256 + 4 * 3 * 4] * (COUNT // 4))


def test_rows_that_are_on_the_device_need_one_event_a_batch(runtime):
    """It marks the end of the copy and that of the kernels; another marks the user's."""
    loader = load(cache="device", batch_size=1)
    for _ in range(2):
        runtime.calls.clear()
        for batch in loader:
            del batch
            runtime.finish()
    assert runtime.calls["eventRecord"] <= 2.25 * COUNT  # few copies are timed, by one more
    assert runtime.calls["getDevice"] <= COUNT + 12  # nothing but the package runs between the two blocks


class Straying(RandomCropFlip):
    """A user's transform, which makes another device current."""

    def draw(self, words, inputs):
        cuda.cupy.cuda.runtime.setDevice(1)
        return super().draw(words, inputs)


@pytest.mark.parametrize("cache", [None, "device"])
def test_kernels_have_their_device_whatever_a_transform_of_the_user_does(runtime, monkeypatch, cache):
    runtime.devices = 2
    launch, seen = runtime.launch, set()

    def checking(work, stream):
        seen.add((runtime.current, runtime.device_of[stream]))
        launch(work, stream)

    monkeypatch.setattr(runtime, "launch", checking)
    for step in load(cuda_places(), cache=cache, transforms=[Straying("0", (5, 4))]):
        runtime.finish()
        assert [images.device.id for images, _ in step] == [0, 1]
        runtime.setDevice(0)
    assert seen == {(0, 0), (1, 1)}


def test_an_order_is_computed_once_an_epoch_and_batches_bring_their_ends(runtime, monkeypatch, sizes):
    orders, compute = [], KernelCall.on_device

    def permuting(call, inputs, outputs, stream):
        if call.kernel is shuffle:
            numbers = [call.options[name] for name in ("count", "seed", "epoch")]
            orders.append((*numbers, runtime.device_of[stream.ptr], outputs[0].data.ptr))
        compute(call, inputs, outputs, stream)

    monkeypatch.setattr(KernelCall, "on_device", permuting)
    runtime.devices = 2
    loader = load(cuda_places(), cache="device", transforms=[])
    for epoch in range(3):
        found = []
        for step in loader:
            runtime.finish()
            found += [[read(field) for field in batch] for batch in step]
        if not epoch:
            assert_same(found, wanted(transforms=[]))
    steps = -(-COUNT // 4)
    assert sizes == [PICTURES.nbytes, LABELS.nbytes] * 2 + [16] * (3 * steps)
    assert [one[:4] for one in orders] == [(COUNT, 3, epoch, index) for epoch in range(3) for index in (0, 1)]
    assert len({one[4] for one in orders}) == 2  # each device reuses the memory of its previous order


def test_too_little_memory_to_sort_an_order(runtime, monkeypatch):
    def permuting(call, *arguments):
        assert call.kernel is shuffle
        raise cupy.cuda.memory.OutOfMemoryError(1024, 2048)

    monkeypatch.setattr(KernelCall, "on_device", permuting)
    loader = load(cache="device")
    with pytest.raises(StagingMemoryError, match="CuPy's memory pool on gpu:0 is too small"):
        next(iter(loader))


def test_a_device_lost_while_an_order_is_computed(runtime):
    loader = load(cache="device")
    list(loader)
    runtime.failed = 700
    with pytest.raises(LoaderError, match=r"gpu:0 failed.* 700"):
        next(iter(loader))
    runtime.failed = 0
    assert len(list(loader)) == len(wanted())


@pytest.mark.parametrize("chunk", [1, 100, 129, 1 << 20])
def test_whole_arrays_go_up_in_chunks(runtime, monkeypatch, chunk):
    monkeypatch.setattr(sending, "UPLOAD_NBYTES", chunk)
    arrays = [np.arange(77, dtype=np.int16), np.zeros((0, 3)), np.arange(36.0).reshape(6, 6)[:, 1:4]]
    there = sending.upload(arrays, open_device(CUDAPlace(0)))
    gc.collect()
    assert not runtime.registered
    for array, one in zip(arrays, there, strict=True):  # without runtime.finish(), because upload waits
        np.testing.assert_array_equal(read(one), array)


def test_an_array_too_large_for_the_device_is_an_error_with_numbers(runtime):
    runtime.memory_left = 1000
    message = "a cache of 2,948 bytes does not fit on gpu:0; use cache='host'"
    with pytest.raises(StagingMemoryError, match=message):
        list(load(cache="device"))


class Failing(Plain):
    """A transform whose kernel cannot be launched."""

    field = "0"

    def bind(self, inputs):
        self.outputs = tuple(inputs)
        return self

    def on_device(self, inputs, outputs, stream):
        raise RuntimeError("no such kernel")


def test_a_kernel_that_cannot_be_launched_costs_no_slot(runtime):
    with nothing_left_behind():
        loader = load(transforms=[Cast("0", "int16"), Failing()])
        for _ in range(3):
            with pytest.raises(RuntimeError, match="no such kernel"):
                list(loader)
            [buffers] = loader._epochs._idle  # all slots are free again, so the buffers were kept
            assert buffers.ring.free == buffers.ring.count
        del loader, buffers
