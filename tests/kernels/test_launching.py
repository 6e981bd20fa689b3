"""What every launch has in common: checks of arrays, grids, and the arguments that CuPy passes."""

import contextlib
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels import launching
from gpuloader.kernels.cast import cast
from gpuloader.kernels.crop import crop
from gpuloader.kernels.gather import gather
from gpuloader.kernels.launching import find_device, spread, spread_rows
from gpuloader.kernels.mixup import blend, mix_labels, paste
from gpuloader.kernels.one_hot import one_hot
from gpuloader.kernels.recolor import recolor
from tests.kernels.cases import CROP, ERASE, NORMALIZE, check_agreement, make_mix
from tests.kernels.shim import Placed, check_shape, pack, place


def crop_rows(width, offset=0):
    out, windows = Placed(np.zeros((2, 5, width, 3), np.uint8), offset), np.zeros((2, 3), np.int32)
    crop(place(np.zeros((2, 7, 20, 3), np.uint8)), (5, width), place(windows), out=out.array)


def gather_rows(width, source_offset=0, offset=0):
    source = Placed(np.zeros((3, width), np.uint8), source_offset)
    out = Placed(np.zeros((2, width), np.uint8), offset)
    gather(source.array, place(np.zeros(2, np.int64)), out=out.array)


def mix_pair(kernel, values, **options):
    kernel(place(values), place(make_mix(2, 0.25)), **options)


FLOATS = np.ones((2, 1, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("launch", "arguments", "entry"),
    [
        (crop_rows, (16,), "crop<uint4>"),
        (crop_rows, (8,), "crop<unsigned long long>"),
        (crop_rows, (4,), "crop<unsigned int>"),
        (crop_rows, (5,), "crop<unsigned int>"),
        (crop_rows, (16, 8), "crop<unsigned long long>"),
        (crop_rows, (16, 3), "crop<unsigned int>"),
        (gather_rows, (64,), "gather<uint4>"),
        (gather_rows, (64, 0, 8), "gather<unsigned long long>"),
        (gather_rows, (24,), "gather<unsigned long long>"),
        (gather_rows, (12,), "gather<unsigned int>"),
        (gather_rows, (64, 4), "gather<unsigned int>"),
        (gather_rows, (64, 2, 2), "gather<unsigned short>"),
        (gather_rows, (7,), "gather<unsigned char>"),
        (gather_rows, (64, 0, 1), "gather<unsigned char>"),
        (mix_pair, (blend, FLOATS), "blend<float>"),
        (mix_pair, (paste, FLOATS), "paste<unsigned int>"),
        (partial(mix_pair, classes=2), (mix_labels, np.array([0, 1])), "mix_labels<long long>"),
    ],
)
def test_words_are_as_large_as_rows_and_addresses_allow(device, launch, arguments, entry):
    device.shape = None
    launch(*arguments)
    assert device.launches[-1][0] == entry


MANY = 70_000
COUNTED = np.arange(MANY * 4, dtype=np.uint32).reshape(MANY, 2, 2, 1)
TURNS = np.stack([np.zeros(MANY), np.zeros(MANY), np.arange(MANY) % 2], 1).astype(np.int32)
CORNERS = (np.arange(MANY)[:, None] % 2 * np.array([0, 0, 1, 1])).astype(np.int32)
TURNED = {"images": COUNTED, "size": (1, 2), "windows": TURNS}
ERASED = {"images": np.ones((MANY, 1, 2, 2), np.uint8), "windows": CORNERS}
CENTERED = {"images": np.zeros((MANY, 2, 2, 1), np.uint8), "mean": 0, "std": 1}


@pytest.mark.parametrize(
    ("case", "arguments", "launch"),
    [
        (CROP, TURNED, ("crop<unsigned long long>", (1, 65535, 1), (1, 1))),
        (ERASE, ERASED, ("erase<unsigned char>", (1, 65535), (32,))),
        # Which stores four floats at once where the result allows.
        (NORMALIZE, CENTERED, ("normalize<unsigned char, float>", (1, 65535, 1), (1, 2))),
    ],
    ids=["crop", "erase", "normalize"],
)
def test_more_samples_than_a_grid_has_rows(device, case, arguments, launch):
    device.shape = None
    check_agreement(case, arguments, [0] * 4, given_out=False)
    assert device.launches[-1][:3] == launch


def test_arrays_off_their_boundary_are_refused_alike(device):
    labels = np.zeros(13, np.uint8)[1:].view(np.int32)
    with pytest.raises(ValueError, match="labels must be aligned to its dtype int32"):
        one_hot.on_host(labels, 2)
    with pytest.raises(ValueError, match="labels must be aligned to its dtype int32"):
        one_hot(place(labels, 1), 2)


def test_objects_are_refused():
    with pytest.raises(TypeError, match="source must hold plain numbers, got object"):
        gather.on_host(np.array([object()]), np.array([0]))


def test_arrays_on_two_devices_are_refused():
    class Array:
        def __init__(self, index):
            self.device = type("Device", (), {"id": index})

    assert find_device(one=Array(1), other=Array(1)).id == 1
    with pytest.raises(ValueError, match="one device, got one on gpu:0, other on gpu:2"):
        find_device(one=Array(0), other=Array(2))


def test_an_out_on_another_device_is_refused(device):
    import cupy

    out = cupy.ndarray((24,), np.float32, Placed(np.zeros(24, np.float32), index=1).array.data)
    with pytest.raises(ValueError, match="out must be on gpu:0, got gpu:1"):
        cast(place(np.arange(24, dtype=np.uint8)), "float32", out=out)


def test_memory_of_a_kernels_own_belongs_to_the_stream_of_its_launches(device, monkeypatch):
    """Else other work on the current stream could get what is dropped while the launches still use it."""
    import cupy

    current, owners = [None], []

    @contextlib.contextmanager
    def enter(stream):
        current.append(stream)
        yield
        current.pop()

    def allocate(nbytes):
        owners.append(current[-1])
        return device.allocate(nbytes)

    monkeypatch.setattr(launching, "on_stream", enter)
    images, changes = np.ones((1, 2, 2, 3), np.uint8), np.array([[2, 0.5]], np.float32)
    with cupy.cuda.using_allocator(allocate):
        recolor(place(images), place(changes), contrasts=1, stream="side")
    assert owners == ["side", "side"]  # of the result and of the sums


@given(rows=st.integers(0, 2**40), words=st.integers(0, 2**40))
def test_any_size_gives_a_grid_that_a_gpu_takes(rows, words):
    check_shape(*spread_rows(rows, words))
    check_shape(*spread(words, rows))


@pytest.mark.parametrize(
    ("argument", "parameter"),
    [
        (np.uint32(1), "u8"),
        (np.int64(1), "u8"),
        (np.float32(1), "f8"),
        (1, "i8"),
        (1.0, "f8"),
        (np.uint64(1), "*f4"),
        (np.zeros((), [("a", np.float32, 3)]), "s16"),
        (np.zeros(4, np.float32), "*f4"),
    ],
)
def test_an_argument_of_another_type_is_caught(argument, parameter):
    with pytest.raises(AssertionError):
        pack(argument, parameter)


def test_an_array_of_another_type_is_caught(device):
    with pytest.raises(AssertionError):
        pack(place(np.zeros(3, np.int64)), "*i4")
    kernel = launching.load_kernel("gather", "gather<unsigned int>")
    with pytest.raises(AssertionError, match="takes"):
        kernel((1,), (1,), (place(np.arange(24, dtype=np.uint8)),))
