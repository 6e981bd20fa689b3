"""Launchers: they refuse the same arguments as their twins, and pass the right ones to CuPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels import launching
from gpuloader.kernels.cast import cast, cast_on_host
from gpuloader.kernels.gather import gather, gather_on_host
from gpuloader.kernels.launching import find_device, spread, spread_rows
from gpuloader.kernels.normalize import normalize, normalize_on_host
from gpuloader.kernels.one_hot import one_hot, one_hot_on_host
from gpuloader.kernels.pad import pad, pad_on_host
from gpuloader.kernels.resample import resample, resample_on_host
from gpuloader.kernels.shuffle import shuffle, shuffle_on_host
from tests.kernels.shim import Placed, check_shape, pack, place, read

BYTES = np.arange(24, dtype=np.uint8)
SPLITS = np.array([0, 2, 4])
WHOLE = np.array([[2, 4, 0, 0, 0, 0, 4, 2, 3, 2, 0, 0, 0]], np.float32)

CALLS = {
    "cast": (cast, cast_on_host, [BYTES, "float32"]),
    "gather": (gather, gather_on_host, [BYTES.reshape(4, 6), np.array([3, 0])]),
    "normalize": (normalize, normalize_on_host, [BYTES.reshape(2, 2, 2, 3), 0.5, 2]),
    "one_hot": (one_hot, one_hot_on_host, [BYTES, 5]),
    "pad": (pad, pad_on_host, [BYTES.reshape(4, 6), SPLITS, 3]),
    "resample": (resample, resample_on_host, [BYTES.reshape(8, 3), np.array([0, 8]), WHOLE, (3, 2)]),
    "shuffle": (shuffle, shuffle_on_host, [20, 1, 2]),
}


def on_device(arguments):
    return [place(value) if isinstance(value, np.ndarray) else value for value in arguments]


@pytest.fixture(params=CALLS)
def call(request, device):
    device.shape = None
    launcher, twin, arguments = CALLS[request.param]
    return launcher, twin, arguments, twin(*arguments)


def test_out_is_written_to_and_returned(call):
    launcher, twin, arguments, expected = call
    for function, inputs, out in (
        (twin, arguments, np.ones_like(expected)),
        (launcher, on_device(arguments), place(np.ones_like(expected))),
    ):
        assert function(*inputs, out=out) is out
        values = out if function is twin else read(out)
        np.testing.assert_array_equal(values, expected)


def test_the_stream_is_the_one_that_was_given(call, device):
    launcher, _, arguments, _ = call
    stream = object()
    device.launches.clear()
    launcher(*on_device(arguments), stream=stream)
    assert device.launches
    assert all(launch[-1] is stream for launch in device.launches)


def test_with_out_nothing_is_allocated(call, monkeypatch):
    import cupy

    launcher, _, arguments, expected = call
    given, out = on_device(arguments), place(np.ones_like(expected))

    def allocate(nbytes):
        raise AssertionError("memory was allocated")

    with cupy.cuda.using_allocator(allocate):
        launcher(*given, out=out)


def wrong_outs(expected):
    yield np.ones((1, *expected.shape), expected.dtype), ValueError, "out must have shape"
    yield np.ones(expected.shape, np.complex64), TypeError, "out must have dtype .*, got complex64"
    yield expected.tolist(), TypeError, "out must be a .*ndarray, got builtins.list"


def test_another_out_is_refused_alike(call):
    launcher, twin, arguments, expected = call
    for out, error, problem in wrong_outs(expected):
        with pytest.raises(error, match=problem):
            twin(*arguments, out=out)
        with pytest.raises(error, match=problem):
            launcher(*on_device(arguments), out=place(out) if isinstance(out, np.ndarray) else out)


def test_an_out_in_pieces_or_read_only_is_refused(call):
    launcher, twin, arguments, expected = call
    wide = np.ones((*expected.shape, 2), expected.dtype)
    for function, inputs, out in (
        (twin, arguments, wide[..., 0]),
        (launcher, on_device(arguments), place(wide)[..., 0]),
    ):
        with pytest.raises(ValueError, match=r"out must be contiguous, got .* with strides"):
            function(*inputs, out=out)
    frozen = np.ones_like(expected)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writable"):
        twin(*arguments, out=frozen)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "shuffle"])
def test_arrays_of_another_library_are_refused(device, name):
    launcher, twin, arguments = CALLS[name]
    with pytest.raises(TypeError, match=r"must be a cupy.ndarray, got numpy.ndarray"):
        launcher(*arguments)
    with pytest.raises(TypeError, match=r"must be a numpy.ndarray, got cupy.ndarray"):
        twin(*on_device(arguments))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "shuffle"])
def test_arrays_in_pieces_are_refused_alike(device, name):
    launcher, twin, (array, *rest) = CALLS[name]
    pieces = np.repeat(array[..., None], 2, axis=-1)
    with pytest.raises(ValueError, match=r"contiguous, .*; pass numpy.ascontiguousarray\("):
        twin(pieces[..., 0], *rest)
    with pytest.raises(ValueError, match=r"contiguous, .*; pass cupy.ascontiguousarray\("):
        launcher(place(pieces)[..., 0], *on_device(rest))


@pytest.mark.parametrize(
    ("function", "arguments", "error", "problem"),
    [
        (gather, [np.zeros(3), np.zeros(2, np.int32)], TypeError, "indices must have dtype int64, got int32"),
        (gather, [np.zeros(3), np.zeros((2, 1), np.int64)], ValueError, r"indices must have shape \(any,\)"),
        (
            gather,
            [np.zeros(()), np.zeros(2, np.int64)],
            ValueError,
            "source must have at least one dimension",
        ),
        (
            gather,
            [np.zeros((0, 3)), np.zeros(2, np.int64)],
            ValueError,
            r"2 rows from an empty source of",
        ),
        (pad, [np.zeros(3), np.zeros(0, np.int64), 3], ValueError, "row_splits must have one more entry"),
        (pad, [np.zeros(3), SPLITS, -1], ValueError, "longest must be from 0 to .*, got -1"),
        (pad, [np.zeros(3), SPLITS, 2.5], TypeError, "longest must be an integer, got float"),
        (pad, [np.zeros(3), SPLITS, True], TypeError, "longest must be an integer, got bool"),
        (pad, [np.zeros(()), SPLITS, 2], ValueError, "values must have at least one dimension"),
        (pad, [np.zeros(3, np.uint8), SPLITS, 2, 300], ValueError, "fill must fit into uint8, got 300"),
        (one_hot, [np.zeros(3), 2], TypeError, "labels must have dtype uint8 .*, got float64"),
        (one_hot, [BYTES, -1], ValueError, "classes must be from 0 to .*, got -1"),
        (one_hot, [BYTES, 2, "complex64"], TypeError, "dtype must be one of bool, .*, got complex64"),
        (cast, [np.zeros(3, np.complex64), "float32"], TypeError, "values must have dtype .*, got complex64"),
    ],
)
def test_launcher_and_twin_refuse_alike(device, function, arguments, error, problem):
    _, twin, _ = CALLS[function.__name__]
    with pytest.raises(error, match=problem):
        twin(*arguments)
    with pytest.raises(error, match=problem):
        function(*on_device(arguments))


def test_a_mask_is_checked_like_any_result(device):
    for mask, error in ((np.ones((2, 4), bool), ValueError), (np.ones((2, 3), np.uint8), TypeError)):
        with pytest.raises(error, match="mask must"):
            pad_on_host(BYTES, SPLITS, 3, mask=mask)
        with pytest.raises(error, match="mask must"):
            pad(place(BYTES), place(SPLITS), 3, mask=place(mask))


def test_arrays_off_their_boundary_are_refused_alike(device):
    labels = np.zeros(13, np.uint8)[1:].view(np.int32)
    with pytest.raises(ValueError, match="labels must be aligned to its dtype int32"):
        one_hot_on_host(labels, 2)
    with pytest.raises(ValueError, match="labels must be aligned to its dtype int32"):
        one_hot(place(labels, 1), 2)


def test_objects_are_refused():
    with pytest.raises(TypeError, match="source must hold plain numbers, got object"):
        gather_on_host(np.array([object()]), np.array([0]))


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
        cast(place(BYTES), "float32", out=out)


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
        kernel((1,), (1,), (place(BYTES),))
