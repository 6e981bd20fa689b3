"""Torch's tensors as NumPy arrays, without importing torch, and the dtypes of torch that NumPy lacks.

A tensor of such a dtype, for example bfloat16, is staged as its bits. The bits' dtype is a structured one
whose only field has the torch dtype's name, so that no bits are ever taken for numbers.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array

_PREFIX = "torch."
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""The integers of each size that hold bits; every release of torch exchanges these with NumPy."""
_DETACHED = (
    "a tensor that requires a gradient is delivered without it, because a loader copies the values of "
    "samples into batches; pass tensor.detach(). Results of a collate_fn keep their gradients with "
    "output='torch', on a CPU place and without worker processes"
)


def is_tensor(value: object) -> bool:
    """Return whether a value is torch's tensor.

    >>> is_tensor(np.zeros(2))
    False
    """
    torch = sys.modules.get("torch")
    # `import torch` may still be running in another thread.
    kind = getattr(torch, "Tensor", None)
    return kind is not None and isinstance(value, kind)


def needs_gradient(value: object) -> bool:
    """Return whether a value is torch's tensor and requires a gradient.

    >>> needs_gradient(np.zeros(2))
    False
    """
    return is_tensor(value) and bool(getattr(value, "requires_grad", False))


def can_stage(value: object) -> bool:
    """Return whether a value is anything but a tensor that is sparse, nested, quantized or on another device.

    >>> can_stage(np.zeros(2))
    True
    """
    return not is_tensor(value) or not _find_obstacle(value)


def _find_obstacle(tensor: Any) -> str:
    """Return why a tensor cannot be staged and what can, for an error message; empty if it can."""
    if tensor.is_nested:
        return "a nested tensor; pass tensor.unbind()"
    if tensor.layout is not sys.modules["torch"].strided:
        return f"a tensor of layout {tensor.layout}; pass tensor.to_dense()"
    if tensor.is_quantized:
        return "a quantized tensor; pass tensor.dequantize()"
    return "" if tensor.device.type == "cpu" else f"a tensor on {tensor.device}; pass tensor.cpu()"


def tensor_array(tensor: Any, wanted: np.dtype[Any] | None = None) -> Array:
    """Return a tensor's numbers as an array, sharing its memory where possible.

    Pending conjugations and negations are carried out. The gradient is left behind, with a warning. Numbers
    of a dtype that NumPy lacks become bits, or if they will be cast to a `wanted` dtype, float32 or
    complex64, which hold them exactly. Raises `SampleError` for a tensor that is not dense, or not in host
    memory.
    """
    array: Array
    # Asking first what kind of tensor it is would take longer than this, which nearly always works.
    with suppress(RuntimeError, TypeError):
        array = tensor.numpy()
        return array
    if obstacle := _find_obstacle(tensor):
        raise SampleError(
            f"expected a dense tensor in host memory, got {obstacle}, or return it from a collate_fn, whose "
            "results are delivered as they are"
        )
    if tensor.requires_grad:
        # Python shows a warning of one text and line once per process.
        warnings.warn(_DETACHED, UserWarning, stacklevel=2)
    plain = tensor.detach().resolve_conj().resolve_neg()
    with suppress(TypeError):  # a dtype that NumPy lacks
        array = plain.numpy()
        return array
    return _as_bits(plain) if wanted is None or torch_name(wanted) is not None else _widen(plain, wanted)


def as_array(values: Any) -> Array:
    """Return values as an array, without a copy where possible; tensors of dtypes NumPy lacks as their bits.

    >>> as_array([1, 2]).shape
    (2,)
    """
    return tensor_array(values) if is_tensor(values) else np.asarray(values)


def _as_bits(tensor: Any) -> Array:
    integers = getattr(sys.modules["torch"], _INTEGERS[tensor.element_size()])
    bits: Array = tensor.view(integers).numpy()
    return bits.view(bits_dtype(str(tensor.dtype).removeprefix(_PREFIX), bits.itemsize))


def _widen(tensor: Any, wanted: np.dtype[Any]) -> Array:
    torch: Any = sys.modules["torch"]
    try:
        wide: Array = tensor.to(torch.complex64 if tensor.dtype.is_complex else torch.float32).numpy()
    except (RuntimeError, TypeError) as error:
        raise SampleError(f"expected {wanted}, got {tensor.dtype}, which cannot be converted") from error
    return wide


@cache
def bits_dtype(name: str, itemsize: int) -> np.dtype[Any]:
    """Return the dtype of the bits of torch's dtype with this name.

    >>> bits_dtype("bfloat16", 2).itemsize
    2
    """
    return np.dtype([(_PREFIX + name, _INTEGERS[itemsize])])


def torch_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name of the torch dtype whose bits a dtype holds; None for a dtype of numbers.

    >>> torch_name(bits_dtype("bfloat16", 2)), torch_name(np.dtype("float32"))
    ('bfloat16', None)
    """
    # A field's name with a dot cannot be mistaken for one of the user's own structured dtypes.
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
    """Return torch's tensor over an array's memory, also if the array holds the bits of a dtype NumPy lacks.

    `wrap` makes a tensor of an array of numbers; None means ``torch.from_numpy``.
    """
    torch: Any = sys.modules.get("torch") or import_module("torch")
    wrap = wrap or torch.from_numpy
    dtype = array.dtype
    if dtype.isbuiltin == 1:
        return wrap(array)
    # The dtypes of ml_dtypes have the same names as torch's.
    name = torch_name(dtype) or (dtype.name if dtype.name.startswith(("bfloat", "float8")) else "")
    held = getattr(torch, name, None) if name else None
    return wrap(array) if held is None else wrap(as_integers(array)).view(held)


def as_integers(array: Array) -> Array:
    """Return bits, or numbers of a dtype that NumPy itself lacks, as integers over the same memory.

    >>> as_integers(np.zeros(2, bits_dtype("bfloat16", 2))).dtype
    dtype('int16')
    """
    return array.view(_INTEGERS[array.itemsize])


def bits_of(number: float, dtype: np.dtype[Any]) -> Array:
    """Return a number as an array without dimensions that holds its bits in torch's dtype.

    Raises `SampleError` if the dtype cannot hold the number, not even rounded.
    """
    torch: Any = sys.modules["torch"]
    name = torch_name(dtype)
    assert name is not None
    held_as = getattr(torch, name)
    wide = torch.complex128 if held_as.is_complex else torch.float64
    try:
        held = torch.tensor(number, dtype=wide).to(held_as)
        back = held.to(wide).item()
    except (RuntimeError, TypeError) as error:
        raise SampleError(f"no number can be converted to {describe_dtype(dtype)}") from error
    # Rounding moves a number by less than half of it; out of range, it becomes NaN, infinity or the limit.
    if not (back == number or abs(back - number) < abs(number) / 2 or (number != number and back != back)):
        raise SampleError(f"{describe_dtype(dtype)} cannot hold {number!r}")
    return _as_bits(held)
