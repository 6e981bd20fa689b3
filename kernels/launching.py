"""Declares kernels, so that launcher, twin and checks have one source; then launches them.

A kernel is one function under `declare`. The decorator says what its arrays must be. The function has the
signature of both launcher and twin, checks what the decorator cannot express, and returns a `Work`::

    @declare(values=takes("uint8"))
    def invert(values, *, out=None, stream=None):
        def on_host(result):
            np.subtract(255, values, out=result)

        def on_device(result):
            yield "invert", spread(values.size), (values, result, np.uint64(values.size))

        return Work(values.shape, values.dtype, on_host, on_device)

    invert(cupy_array), invert.on_host(numpy_array)

Below the declaration: the checks, devices and streams, and the sizes of grids.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from types import EllipsisType
from typing import Any, Generic, Literal, NamedTuple, ParamSpec

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.kernels.compiler import load_kernel as load_kernel

# ---------------------------------------------------------------------------------------------------------
# The declaration

Parameters = ParamSpec("Parameters")

# The library whose arrays a function takes: CuPy for launchers, NumPy for twins.
Library = Literal["numpy", "cupy"]

# A declared shape: numbers, names that stand for the same number in all shapes of a kernel, and None for any
# number. ``...`` at the end allows any rank.
Shape = tuple[int | str | EllipsisType | None, ...]

# Grid and block of a launch.
Grid = tuple[tuple[int, ...], tuple[int, ...]]

_NULL = np.uint64(0)  # replaces an array that is left out


class ArrayParameter(NamedTuple):
    """What an array parameter of a kernel takes, as `takes` makes it."""

    dtypes: tuple[np.dtype[Any], ...]
    shape: Shape | None
    optional: bool
    written: bool


def takes(
    *dtypes: DTypeLike, shape: Shape | None = None, optional: bool = False, written: bool = False
) -> ArrayParameter:
    """Declare an array parameter; without dtypes or a shape it takes any."""
    return ArrayParameter(tuple(map(np.dtype, dtypes)), shape, optional, written)


class KernelLaunch(NamedTuple):
    """A launch of an entry of a kernel's file, with everything needed to repeat it.

    Arguments are CuPy arrays, NumPy scalars and structures, of exactly the types that the kernel takes: CuPy
    passes their bytes on, and nobody compares them with the parameters.
    """

    file: str
    entry: str | Callable[..., Any]  # a function of Python takes what a kernel does
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]

    def load(self) -> Any:
        """Return the kernel for the current device; see `load_kernel`."""
        return load_kernel(self.file, self.entry) if isinstance(self.entry, str) else self.entry


class Work(NamedTuple):
    """What follows from checked arguments: the result, and how each side writes it.

    `on_device` yields launches: an entry, or a function that is called like one. A kernel that works in place
    names its array in `into`.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike
    on_host: Callable[[Any], None]
    on_device: Callable[[Any], Iterator[tuple[str | Callable[..., Any], Grid, tuple[Any, ...]]]]
    into: Any = None


def declare(**arrays: ArrayParameter) -> Callable[[Callable[Parameters, Work]], Kernel[Parameters]]:
    """Make a kernel from a function; the keywords say what its array parameters take."""
    return partial(Kernel, arrays=arrays)


class Kernel(Generic[Parameters]):
    """A declared kernel: a call launches it, and `on_host` runs its twin. Both have the declared signature.

    The arrays must be on one device, contiguous and aligned. `out` is the array to write to; it must have the
    result's shape and dtype and not overlap an input. None allocates one. `stream` is the stream to run on;
    None is the current stream of the arrays' device. A twin also accepts a stream, so that both can be called
    alike.

    Raises
    ------
    TypeError
        An array is of another library or dtype, or an argument is of another type.
    ValueError
        An array has another shape, is not contiguous, aligned or writable, or is on another device; or a
        number is out of range.
    """

    __wrapped__: Callable[Parameters, Work]
    __qualname__: str

    def __init__(self, function: Callable[Parameters, Work], arrays: Mapping[str, ArrayParameter]) -> None:
        # With the function's name, module and docstring, `help` and doctest treat the kernel as a function.
        update_wrapper(self, function)
        signature = inspect.signature(function)
        self.__signature__ = signature.replace(return_annotation=Any)
        self.arrays = arrays
        self.file = self.__module__.rpartition(".")[2]
        # Kept, because `Signature.bind` would cost every launch more than all checks together.
        self._positions = list(signature.parameters)

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled by name, like the function it looks like

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
        """Launch the kernel, and return the result."""
        result, device, launches = self._prepare(*args, **kwargs)
        for one in launches:
            # A kernel belongs to the device that it was loaded for, so that device has to be current.
            with on_device(device):
                one.load()(one.grid, one.block, one.arguments, stream=kwargs.get("stream"))
        return result

    def launches(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> list[KernelLaunch]:
        """Return the launches of a call, to be made later and repeated."""
        return self._prepare(*args, **kwargs)[2]

    def _prepare(
        self, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> tuple[Any, Any, list[KernelLaunch]]:
        """Return the result, its device, and the launches that compute it."""
        given = self._check("cupy", args, kwargs)
        work, out = self.__wrapped__(*args, **kwargs), kwargs.get("out")
        # A kernel without inputs runs where its result is; CuPy allocates on the current device.
        device = find_device(**given) if given else getattr(out, "device", None) or current_device()
        result = work.into
        if result is None:
            result = obtain("out", out, work.shape, work.dtype, device, kwargs.get("stream"))
        # If nothing is written, nothing is launched: sizes that the grid is divided by may be 0.
        launches = [
            KernelLaunch(self.file, entry, *shape, tuple(_NULL if one is None else one for one in arguments))
            for entry, shape, arguments in (work.on_device(result) if result.nbytes else ())
        ]
        return result, device, launches

    def on_host(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> NDArray[Any]:
        """Compute the same with NumPy, and return the result."""
        self._check("numpy", args, kwargs)
        work = self.__wrapped__(*args, **kwargs)
        result: NDArray[Any] | None = work.into
        if result is None:
            result = obtain("out", kwargs.get("out"), work.shape, work.dtype)
        work.on_host(result)
        return result

    def _check(self, library: Library, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays that were given, after checking them as declared."""
        given: dict[str, Any] = {}
        sizes: dict[Any, int] = {}
        for name, parameter in self.arrays.items():
            position = self._positions.index(name)
            if name not in kwargs and position >= len(args):
                continue  # a default, or missing: Python reports that when it calls the function
            array = kwargs[name] if name in kwargs else args[position]
            if array is not None or not parameter.optional:
                check_array(name, array, library, parameter, sizes)
                given[name] = array
        return given


# ---------------------------------------------------------------------------------------------------------
# Checks


def check_array(
    name: str, array: Any, library: Library, parameter: ArrayParameter, sizes: dict[str, int]
) -> None:
    """Raise `TypeError` or `ValueError` unless `array` can be passed to a kernel as it is."""
    module = sys.modules.get(library)
    if module is None or not isinstance(array, module.ndarray):
        found = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(f"{name} must be a {library}.ndarray, got {found}")
    check_dtype(name, array, parameter.dtypes)
    if array.dtype.hasobject:
        raise TypeError(f"{name} must hold plain numbers, got {array.dtype}")
    if parameter.shape is not None:
        check_shape(name, array, parameter.shape, sizes)
    # A kernel gets an address and no strides, and it loads whole elements, which a GPU can only do at
    # multiples of their size.
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} must be contiguous, got shape {array.shape} with strides {array.strides}; "
            f"pass {library}.ascontiguousarray({name})"
        )
    address = array.ctypes.data if library == "numpy" else array.data.ptr
    if array.size and address % array.dtype.alignment:
        raise ValueError(f"{name} must be aligned to its dtype {array.dtype}, got address {address}")
    if parameter.written and not getattr(array.flags, "writeable", True):  # CuPy has no such flag
        raise ValueError(f"{name} must be writable")


def check_dtype(name: str, array: Any, dtypes: Sequence[DTypeLike]) -> None:
    """Raise `TypeError` unless an array has one of the dtypes; none allows any."""
    if dtypes and array.dtype not in dtypes:
        expected = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise TypeError(f"{name} must have dtype {expected}, got {array.dtype}")


def check_shape(name: str, array: Any, shape: Shape, sizes: dict[str, int] | None = None) -> None:
    """Raise `ValueError` unless an array has a shape, whose names stand for `sizes`; unknown ones are added.

    >>> sizes = {}
    >>> check_shape("windows", np.zeros((2, 3)), ("samples", 3), sizes)
    >>> sizes
    {'samples': 2}
    """
    found, known = array.shape, {} if sizes is None else sizes
    if shape == found:
        return
    fits = len(shape) == len(found) or (shape[-1] is ... and len(found) >= len(shape) - 1)
    # A plain loop: generators took most of the time of a launch.
    for one, size in zip(shape, found if fits else (), strict=False):
        wanted = known.setdefault(one, size) if isinstance(one, str) else one
        if isinstance(wanted, int) and wanted != size:
            fits = False
    if fits:
        return
    if shape[-1] is ...:
        raise ValueError(f"{name} must have at least one dimension, got shape {found}")
    shown = str(tuple(known.get(one) if isinstance(one, str) else one for one in shape))
    raise ValueError(f"{name} must have shape {shown.replace('None', 'any')}, got {found}")


def check_size(name: str, value: object, least: int, limit: int = 2**63) -> int:
    """Return `value` as an int if it is an integer from `least` to below `limit`; raise otherwise.

    >>> check_size("classes", np.int64(10), least=0)
    10
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if not least <= value < limit:
        raise ValueError(f"{name} must be from {least} to {limit - 1}, got {value}")
    return int(value)


def obtain(
    name: str, out: Any, shape: tuple[int, ...], dtype: DTypeLike, device: Any = None, stream: Any = None
) -> Any:
    """Return the array that launches on `stream` write to: `out`, which must fit, or a new one for None.

    Without a `device`, it is NumPy's.
    """
    if out is None and device is None:
        return np.empty(shape, dtype)
    if out is None:
        # CuPy's pool ties memory to the stream that is current at allocation. Otherwise, other work on that
        # stream could get what is dropped here while launches on this one still use it.
        with on_device(device), on_stream(stream):
            return sys.modules["cupy"].empty(shape, dtype)
    library: Library = "numpy" if device is None else "cupy"
    check_array(name, out, library, takes(dtype, shape=shape, written=True), {})
    if device is not None and out.device.id != device.id:
        raise ValueError(f"{name} must be on gpu:{device.id}, got gpu:{out.device.id}")
    return out


# ---------------------------------------------------------------------------------------------------------
# Devices and streams


def find_device(**arrays: Any) -> Any:
    """Return the one device that all arrays are on; raise `ValueError` if they are on several."""
    devices = {name: array.device for name, array in arrays.items()}
    if len({device.id for device in devices.values()}) > 1:
        found = ", ".join(f"{name} on gpu:{device.id}" for name, device in devices.items())
        raise ValueError(f"arrays must be on one device, got {found}")
    return next(iter(devices.values()), None)


def on_device(device: Any) -> Any:
    """Return a context in which `device` is the current device; None changes nothing."""
    # A device that is already current is not entered. On leaving it, CuPy would set the previous device,
    # which from CUDA 12 on creates that device's context: about 500 MiB, though nothing may ever run there.
    if device is None or device.id == sys.modules["cupy"].cuda.runtime.getDevice():
        return contextlib.nullcontext()
    return device


def current_device() -> Any:
    """Return CuPy's current device of this thread."""
    import cupy

    return cupy.cuda.Device()


def on_stream(stream: Any) -> Any:
    """Return a context in which `stream` is the current stream; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


def by_value(numbers: ArrayLike, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
    """Return numbers as a structure of the .cu file, whose fields follow one another in the same order.

    >>> by_value([2, 3]).shape, by_value([2, 3]).nbytes
    ((1,), 8)
    """
    # CuPy passes an array of one element by value, and any other not at all.
    array = np.asarray(numbers, dtype).reshape(-1)
    return array.view(f"V{array.nbytes}")


# ---------------------------------------------------------------------------------------------------------
# Sizes of grids. Kernels loop over what a grid does not cover, so all of these only affect speed.

_BLOCK = 256
_GREATEST_X, _GREATEST_Y = 2**31 - 1, 65535  # what CUDA allows
_WORDS_PER_LANE = 4
# Each lane finds its row first, which takes as long as some words. An H200 pads rows of 256 words in 400 µs
# with 64 lanes for each, and in 500 with 256.
_ROW_LANES = 64
_MOST_LINES = 8
_ENOUGH_BLOCKS = 1024  # fill the largest device, so that lanes may have more than one row each


def spread(items: int, samples: int = 1) -> Grid:
    """Return grid and block for one thread per item, with samples along the grid's y.

    >>> spread(1000), spread(20, samples=70_000)
    (((4, 1), (256,)), ((1, 65535), (32,)))
    """
    # Whole warps, but no more of them than the items need.
    block = min(_BLOCK, max(-(-items // 32) * 32, 32))
    return (_within(-(-items // block), _GREATEST_X), _within(samples, _GREATEST_Y)), (block,)


def spread_rows(rows: int, words: int, each: int = 1) -> Grid:
    """Return grid and block for copying rows of words: lanes along a row, several rows per block.

    Long rows are split over the grid's y. If there are enough rows to fill a device, a lane copies up to
    `each` times as many words: of more rows, or of a longer part of one.

    >>> spread_rows(rows=1000, words=3), spread_rows(rows=10**6, words=3, each=4)
    (((12, 1), (3, 85)), ((2942, 1), (3, 85)))
    >>> spread_rows(rows=2, words=10_000), spread_rows(rows=5000, words=10_000, each=4)
    (((1, 40), (64, 2)), ((1250, 10), (64, 4)))
    """
    lanes = count_lanes(words, _ROW_LANES)
    beside = min(_BLOCK // lanes, max(rows, 1))
    blocks, parts = -(-rows // beside), -(-words // (lanes * _WORDS_PER_LANE))
    # More loads in flight per lane hide the memory's latency, but only once every multiprocessor is busy.
    each = min(each, max(blocks * parts // _ENOUGH_BLOCKS, 1))
    if parts > 1:
        parts = -(-parts // each)
    else:
        blocks = -(-blocks // each)
    return (_within(blocks, _GREATEST_X), _within(parts, _GREATEST_Y)), (lanes, beside)


def spread_images(samples: int, lines: int, words: int, planes: int = 1, each: int = 1) -> Grid:
    """Return grid and block for images: lanes along a line, with `each` words per lane, and several lines.

    >>> spread_images(samples=64, lines=28, words=21), spread_images(samples=4096, lines=224, words=42)
    (((3, 64, 1), (21, 12)), ((5, 4096, 1), (42, 6)))
    """
    # x counts lines, y samples and z planes, so that no thread has to divide to find its row.
    lanes = count_lanes(-(-words // each))
    beside = min(_BLOCK // lanes, max(lines, 1))
    blocks = -(-lines // beside)
    # With enough blocks to fill a device, a lane makes several lines, so that fewer threads have to start.
    each_lines = min(_MOST_LINES, max(blocks * samples * planes // _ENOUGH_BLOCKS, 1))
    x = _within(-(-blocks // each_lines), _GREATEST_X)
    return (x, _within(samples, _GREATEST_Y), _within(planes, _GREATEST_Y)), (lanes, beside)


def count_lanes(words: int, most: int = _BLOCK) -> int:
    """Return how many lanes copy a row of words: one for each, or an even share of many.

    >>> count_lanes(21), count_lanes(300)
    (21, 150)
    """
    # An even share: with 256 lanes for 300 words, only 44 would be busy in the second pass.
    words = max(words, 1)
    return -(-words // -(-words // most))


def _within(size: int, greatest: int) -> int:
    return min(max(size, 1), greatest)
