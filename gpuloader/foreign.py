"""Objects of other frameworks, recognized and read without importing any of them.

The user's samples, samplers, generators, streams and places may come from PyTorch, Paddle, JAX, CuPy, pandas,
Polars or Arrow. A package that the program has not imported cannot have made any of them. So all answers come
from `sys.modules` or from the object itself, and none costs an import.

- classes: of data packages, tensors, generators, tables
- values: torch's tensors as NumPy arrays and back, also of dtypes that NumPy lacks
- devices: places, streams, and where an array lies
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import SampleError, warn

if TYPE_CHECKING:
    import torch

DATA_MODULES = ("torch.utils.data", "paddle.io")
"""Where PyTorch and Paddle keep their datasets and samplers."""
FRAME, COLUMNS, SERIES = "frame", "columns", "series"
"""The answers of `name_table`."""

_UNREAD = (
    ("polars", "LazyFrame", "frame.collect()"),
    ("pyarrow", "RecordBatchReader", "reader.read_all()"),
    ("pyarrow", "RecordBatchFileReader", "reader.read_all()"),
    ("pyarrow.parquet", "ParquetFile", "file.read(), or gpuloader.ParquetDataset(path)"),
    ("pyarrow.parquet", "ParquetDataset", "dataset.read(), or gpuloader.ParquetDataset(dataset.files)"),
    (
        "pyarrow.dataset",
        "FileSystemDataset",
        "dataset.to_table(), or gpuloader.ParquetDataset(dataset.files)",
    ),
    ("pyarrow.dataset", "Dataset", "dataset.to_table()"),
    ("pyarrow.dataset", "Scanner", "scanner.to_table()"),
)
"""Tables that are not in memory yet: module, class, and what to write to read them."""

_PREFIX = "torch."
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""The integers of each size that hold bits; all releases of torch exchange these with NumPy."""
_DETACHED = (
    "a tensor that requires a gradient is delivered without it, because a loader copies the values of "
    "samples into batches; pass tensor.detach(). Results of a collate_fn keep their gradients with "
    "output='torch', on a CPU place and without worker processes"
)
_HOST_MEMORY = (1, 3)  # DLPack's numbers for host memory, the second for pinned


def find_classes(*names: str, modules: Iterable[str] = DATA_MODULES) -> tuple[type[Any], ...]:
    """Return the classes with these names from those of the modules that are imported.

    >>> find_classes("NoSuchSampler")
    ()
    """
    found: list[type[Any]] = []
    for module in modules:
        loaded = sys.modules.get(module)
        for name in names if loaded is not None else ():
            # Another thread may still be running the import, and then the class is not there yet.
            kind = getattr(loaded, name, None)
            if isinstance(kind, type):
                found.append(kind)
    return tuple(found)


def is_instance(value: object, module: str, *names: str) -> bool:
    """Return whether a value is of one of a module's classes; False if the program has not imported it.

    >>> import fractions
    >>> is_instance(fractions.Fraction(1, 2), "fractions", "Fraction"), is_instance(1, "no_such", "One")
    (True, False)
    """
    return module in sys.modules and isinstance(value, find_classes(*names, modules=(module,)))


def foreign_name(value: object) -> str:
    """Return the name of a value's class if it is exactly a data class of PyTorch or Paddle, else ''."""
    kind = type(value)
    # Not isinstance: a subclass may yield indices different from those of its base class.
    for module in DATA_MODULES:
        if getattr(sys.modules.get(module), kind.__name__, None) is kind:
            return str(kind.__name__)
    return ""


def is_torch_generator(value: object) -> TypeGuard[torch.Generator]:
    """Return whether this is a ``torch.Generator``."""
    return is_instance(value, "torch", "Generator")


def name_table(value: object) -> str:
    """Return whether a value is a 'frame', a dict of 'columns', or a 'series' of pandas; empty for others.

    Frames are the data frames of pandas and Polars, Arrow tables, lists of these, and objects that read these
    from files. So are single columns of Arrow, which no loader reads: their rows are objects of Arrow. The
    keys of a dict of columns are all strings.

    >>> name_table({"a": [1, 2]}), name_table({0: "first sample"}), name_table({})
    ('columns', '', '')
    """
    # Only for a plain list: the `__getitem__` of a subclass may read a sample.
    one = value[0] if type(value) is list and value else value
    kinds = find_classes("DataFrame", "Table", "RecordBatch", modules=("pandas", "polars", "pyarrow"))
    if isinstance(one, kinds) or is_instance(value, "pyarrow", "Array", "ChunkedArray") or how_to_read(value):
        return FRAME
    # A dict with numbers as keys is a dataset by index, not a table, and so is a TensorDict.
    reads_rows = hasattr(value, "__getitems__")
    if not reads_rows and isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return COLUMNS
    return SERIES if is_instance(value, "pandas", "Series") else ""


def how_to_read(value: object) -> str:
    """Return what to write in order to read a table that is not in memory yet; empty for other values."""
    for module, name, line in _UNREAD:
        if is_instance(value, module, name):
            return line
    return ""


def values_by_position(value: Any) -> Any:
    """Return the values of a pandas series, to be read by position, not by label; others unchanged."""
    return value.array if is_instance(value, "pandas", "Series") else value


def find_library(value: object) -> str | None:
    """Return the name of the `output` that delivers arrays of a value's class, or None.

    >>> find_library(np.zeros(2)), find_library("text")
    ('numpy', None)
    """
    if isinstance(value, np.ndarray):
        return "numpy"
    if is_tensor(value):
        return "torch"
    kinds = (("jax", "Array"), ("paddle", "Tensor"))
    return next((name for name, kind in kinds if is_instance(value, name, kind)), None)


def jax_has_computed() -> bool:
    """Return whether JAX has started its threads in this process; False in releases that do not tell.

    >>> jax_has_computed()
    False
    """
    # All public functions start the threads in order to answer.
    ask = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    return ask is not None and bool(ask())


def is_tensor(value: object) -> bool:
    """Return whether a value is a PyTorch tensor."""
    # Called for every field of every sample, so it avoids `find_classes`. While another thread imports
    # torch, the module may lack the class.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def needs_gradient(value: object) -> bool:
    """Return whether a value is a PyTorch tensor that requires a gradient."""
    return is_tensor(value) and bool(getattr(value, "requires_grad", False))


def has_own_class(value: object) -> bool:
    """Return whether a value is a tensor of a class outside torch."""
    return is_tensor(value) and type(value).__module__.partition(".")[0] != "torch"


def warn_of_class(value: object, name: str) -> None:
    """Warn if a value is a tensor of a custom class, which is lost where its numbers are copied."""
    if not has_own_class(value):
        return
    kind = type(value)
    # Python shows each warning text once per line and process.
    warn(
        f"field {name!r}: {kind.__module__}.{kind.__qualname__} becomes a plain tensor, without its "
        "attributes, because the loader copies only its numbers to where batches land; restore the class "
        "in your loop, or let batches land in host memory (places='cpu') and move them yourself"
    )


def is_plain_tensor(value: Any) -> bool:
    """Return whether a value is of torch's own class and a dense copy of its numbers loses nothing."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or value.__dict__ or _find_obstacle(value):
        return False
    # An expanded tensor may stand for far more elements than it stores.
    return all(step or size < 2 for step, size in zip(value.stride(), value.shape, strict=True))


def find_extent(tensor: Any) -> int:
    """Return the number of a dense tensor's elements in memory, from the first to the last, with any gaps."""
    if tensor.is_contiguous():
        return int(tensor.numel())
    return int(1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)))


def can_stage(value: object) -> bool:
    """Return False for a tensor that is sparse, nested, quantized or on a device, else True."""
    return not is_tensor(value) or not _find_obstacle(value)


def _find_obstacle(tensor: Any) -> str:
    """Return why a tensor cannot be staged and what to pass instead, for an error; empty if it can."""
    if tensor.is_nested:
        return "a nested tensor; pass tensor.unbind()"
    if tensor.layout is not sys.modules["torch"].strided:
        return f"a tensor of layout {tensor.layout}; pass tensor.to_dense()"
    if tensor.is_quantized:
        return "a quantized tensor; pass tensor.dequantize()"
    return "" if tensor.device.type == "cpu" else f"a tensor on {tensor.device}; pass tensor.cpu()"


def tensor_array(tensor: Any, wanted: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Return a dense host tensor's numbers as an array, over the tensor's memory where possible.

    Numbers of a dtype that NumPy lacks become bits. If `wanted` says that they will be cast to a numeric
    dtype, they become float32 or complex64, which hold them exactly.

    Raises
    ------
    SampleError
        The tensor is not dense, or not in host memory.
    """
    # Checking the kind of tensor first would take longer than this, which nearly always works.
    with suppress(RuntimeError, TypeError):
        array: NDArray[Any] = tensor.numpy()
        return array
    if obstacle := _find_obstacle(tensor):
        raise SampleError(
            f"expected a dense tensor in host memory, got {obstacle}, or return it from a collate_fn, whose "
            "results are delivered unchanged"
        )
    if tensor.requires_grad:
        # Python shows each warning text once per line and process, so not for every sample.
        warn(_DETACHED)
    # Torch conjugates and negates lazily, with a bit of the tensor that NumPy's view of the memory would
    # lose.
    plain = tensor.detach().resolve_conj().resolve_neg()
    with suppress(TypeError):  # a dtype that NumPy lacks
        return np.asarray(plain.numpy())
    if wanted is not None and torch_name(wanted) is None:
        return _widen(plain, wanted)
    bits: NDArray[Any] = plain.view(getattr(sys.modules["torch"], _INTEGERS[plain.element_size()])).numpy()
    return bits.view(bits_dtype(str(plain.dtype).removeprefix(_PREFIX), bits.itemsize))


def as_array(values: Any) -> NDArray[Any]:
    """Return values as an array, without a copy where possible; dtypes that NumPy lacks become bits."""
    return tensor_array(values) if is_tensor(values) else np.asarray(values)


def _widen(tensor: Any, wanted: np.dtype[Any]) -> NDArray[Any]:
    torch: Any = sys.modules["torch"]
    try:
        wide: NDArray[Any] = tensor.to(torch.complex64 if tensor.dtype.is_complex else torch.float32).numpy()
    except (RuntimeError, TypeError) as error:
        raise SampleError(f"expected {wanted}, got {tensor.dtype}, which cannot be converted") from error
    return wide


@cache
def bits_dtype(name: str, itemsize: int) -> np.dtype[Any]:
    """Return the dtype of the bits of torch's dtype with this name, such as bfloat16."""
    # A structured dtype, so that NumPy refuses to compute with bits as if they were numbers. The name of its
    # only field carries torch's dtype through slots, caches and worker processes.
    return np.dtype([(_PREFIX + name, _INTEGERS[itemsize])])


def torch_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name of the torch dtype whose bits a dtype holds; None for a dtype of numbers.

    >>> torch_name(bits_dtype("bfloat16", 2)), torch_name(np.dtype("float32"))
    ('bfloat16', None)
    """
    # The dot in the field's name tells it from the user's own structured dtypes.
    names = dtype.names
    if names is None or len(names) != 1 or not names[0].startswith(_PREFIX):
        return None
    return names[0].removeprefix(_PREFIX)


def describe_dtype(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name for messages.

    >>> describe_dtype(bits_dtype("bfloat16", 2)), describe_dtype(np.dtype("float32"))
    ('torch.bfloat16', 'float32')
    """
    name = torch_name(dtype)
    return str(dtype) if name is None else _PREFIX + name


def tensor_over(array: Any, wrap: Callable[[Any], Any] | None = None) -> Any:
    """Return torch's tensor over the memory of an array of NumPy or CuPy, also over bits.

    `wrap` makes a tensor of an array of numbers; None means ``torch.from_numpy``.
    """
    torch: Any = sys.modules.get("torch") or import_module("torch")
    wrap = wrap or torch.from_numpy
    dtype, name = array.dtype, ""
    if dtype.isbuiltin != 1:  # a dtype of ml_dtypes has the same name as torch's
        name = torch_name(dtype) or (dtype.name if dtype.name.startswith(("bfloat", "float8")) else "")
    held = getattr(torch, name, None) if name else None
    made = wrap(array) if held is None else wrap(array.view(_INTEGERS[array.itemsize])).view(held)
    # All strides of NumPy's view of an empty tensor are 0, which torch would keep.
    return made if array.size else made.new_empty(made.shape)


class ForeignStream(NamedTuple):
    """A stream of another library: its CUDA handle, which is valid as long as `owner` lives."""

    ptr: int
    owner: object = None


def as_stream(stream: Any) -> ForeignStream:
    """Return a stream of another library; raise TypeError if it is not a CUDA stream."""
    # PyTorch's and Paddle's name for the handle. It comes first because PyTorch has the protocol only from
    # 2.10 on.
    if isinstance(handle := getattr(stream, "cuda_stream", None), int):
        return ForeignStream(handle, stream)
    try:
        version, handle = stream.__cuda_stream__()
        ptr = int(handle)
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(f"{type(stream).__name__} is not a CUDA stream: {error}") from error
    if version != 0:
        raise TypeError(
            f"{type(stream).__name__} implements version {version} of __cuda_stream__, expected version 0"
        )
    return ForeignStream(ptr, stream)


def find_address(array: Any) -> int | None:
    """Return the address of an array's first element on a device; None if it is not an array there."""
    pointer = getattr(array, "data_ptr", None)  # of PyTorch and Paddle
    if callable(pointer):
        return int(pointer())
    pointer = getattr(getattr(array, "data", None), "ptr", None)  # of CuPy
    if pointer is not None:
        return int(pointer)
    interface = getattr(array, "__cuda_array_interface__", None)
    return None if interface is None else int(interface["data"][0])


def is_on_host(array: Any) -> bool:
    """Return whether an array of any library lies in host memory.

    >>> is_on_host(np.zeros(3)), is_on_host("text")
    (True, False)
    """
    # CuPy's arrays answer `__dlpack_device__` by asking the driver, which a graph capture may forbid.
    if hasattr(getattr(array, "data", None), "ptr"):
        return False
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in _HOST_MEMORY


def name_place(place: Any) -> object:
    """Return the string that names a device of PyTorch or a place of Paddle; anything else unchanged.

    >>> name_place("gpu:0"), name_place(3)
    ('gpu:0', 3)
    """
    library, kind = type(place).__module__.partition(".")[0], type(place).__name__
    if library == "torch" and kind == "device":
        # 'cpu:0' is the same place as 'cpu'.
        return "cpu" if place.type == "cpu" else str(place)
    if library != "paddle":
        return place
    if kind == "Place":  # a tensor's place: one class for all devices, whose name does not tell the kind
        tests = {"CPUPlace": place.is_cpu_place, "CUDAPlace": place.is_gpu_place}
        tests["CUDAPinnedPlace"] = place.is_cuda_pinned_place
        kind = next((name for name, holds in tests.items() if holds()), kind)
    if kind == "CUDAPlace":
        # The method has different names on a tensor's place and on a place that a program makes.
        number = place.get_device_id() if hasattr(place, "get_device_id") else place.gpu_device_id()
        return f"gpu:{number}"
    return {"CPUPlace": "cpu", "CUDAPinnedPlace": "gpu_pinned"}.get(kind, place)


def current_cuda_device() -> int:
    """Return PyTorch's current CUDA device, which is what ``'cuda'`` means; 0 if it uses none yet."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # Asking an uninitialized PyTorch would create a context on its device: about 500 MiB of GPU memory.
    return int(cuda.current_device()) if cuda is not None and cuda.is_initialized() else 0


def describe_unused(index: int) -> str:
    """Return how much unused memory frameworks keep on the current GPU, and how to free it, to end an error.

    >>> describe_unused(0)
    ''
    """
    found = []
    for name, cure in _CURES.items():
        module: Any = sys.modules.get(name)
        # This is advice within an error, so nothing that a framework raises may replace the error. And the
        # question must not make a framework begin to use a GPU.
        with suppress(Exception):
            if module is not None and (nbytes := _count_unused(name, module, index)) > 0:
                found.append(f"; {name} keeps {nbytes:,} bytes that it does not use: {cure}")
    return "".join(found)


_CURES = {
    "cupy": "cupy.get_default_memory_pool().free_all_blocks()",
    "torch": "torch.cuda.empty_cache()",
    "paddle": "paddle.device.cuda.empty_cache()",
    "jax": "start the program with XLA_PYTHON_CLIENT_PREALLOCATE=false",
}


def _count_unused(name: str, module: Any, index: int) -> int:
    if name == "cupy":
        return int(module.get_default_memory_pool().free_bytes())
    if name == "jax":
        if not sys.modules["jax._src.xla_bridge"].backends_are_initialized():
            return 0
        [device] = [one for one in module.local_devices() if one.local_hardware_id == index]
        memory = device.memory_stats()
        return int(memory["pool_bytes"] - memory["bytes_in_use"])
    cuda = module.cuda if name == "torch" else module.device.cuda
    if name == "torch" and not cuda.is_initialized():
        return 0
    return int(cuda.memory_reserved(index) - cuda.memory_allocated(index))


class TorchStreams:
    """PyTorch's current streams, per GPU, in the calling thread; queried before every batch on a GPU."""

    __slots__ = ("_ask", "_torch")

    def __init__(self) -> None:
        self._torch: Any = None
        self._ask: Any = None

    def current(self, index: int) -> int | None:
        """Return the handle of the current stream on a GPU; None if PyTorch uses none."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return None
        if torch is not self._torch:
            cuda: Any = getattr(torch, "cuda", None)
            # Before PyTorch has initialized CUDA, it has no work on any stream.
            if cuda is None or not cuda.is_initialized():
                return None
            self._torch, self._ask = torch, find_raw_stream(torch)
        handle: int = self._ask(index)
        return handle


def find_raw_stream(torch: Any) -> Callable[[int], int]:
    """Return the function of the module `torch` that finds the handle of the current stream on a GPU."""
    # The private function returns the handle without a stream object; releases without it create one.
    raw: Any = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))
