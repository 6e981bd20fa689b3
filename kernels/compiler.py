"""Turns a .cu file into kernels, which CuPy compiles and loads on a GPU.

A file holds either one kernel of its own name or several entries, which its Python module lists in
``ENTRIES``: kernels of other names, or templates, each with what launches use for its parameters: dtypes, C++
types or numbers.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The C++ types of dtypes, as written in numbers.cuh and by compilers. NumPy has no bfloat16: arrays hold its
# bits as uint16, and only the kernels know a type for it. NumPy's bools are bytes of 0 or 1.
CPP_TYPES = {
    "bool": "unsigned char", "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "int8": "signed char", "int16": "short", "int32": "int",
    "int64": "long long", "float16": "Half", "bfloat16": "Bfloat16", "float32": "float", "float64": "double",
}  # fmt: skip

# Compiler options passed to CuPy, which adds -ftz=true.
OPTIONS = ("--std=c++17",)


def _find_folder() -> Traversable:
    from importlib import resources  # imported late, with fifteen modules: most programs compile nothing

    return resources.files("gpuloader.kernels")


def kernel_names() -> list[str]:
    """Return the names of all kernels' files.

    >>> kernel_names()[:5]
    ['cast', 'crop', 'gather', 'mixup', 'normalize']
    """
    return sorted(file.name[:-3] for file in _find_folder().iterdir() if file.name.endswith(".cu"))


@cache
def read_source(name: str) -> str:
    """Return the CUDA source of a kernel, with our own .cuh files expanded in place.

    >>> "__global__" in read_source("spin")
    True
    """
    # CuPy keeps what it has compiled on disk by a hash of the source. An included file is not part of that
    # hash, so after it changed, the old code would run.
    folder = _find_folder()
    source = folder.joinpath(f"{name}.cu").read_text("utf-8")
    include = lambda line: folder.joinpath(line[1]).read_text("utf-8")  # noqa: E731
    return re.sub(r'^#include "(\w+\.cuh)"$', include, source, flags=re.M)


_loading: dict[tuple[str, str, int], threading.Lock] = {}


def load_kernel(name: str, entry: str | None = None) -> Any:
    """Return a kernel ready to launch on the current device; None for the entry named like its file.

    CuPy keeps what it has compiled on disk. Any thread may call this. Of several that want the same kernel,
    one compiles it, and the others wait.
    """
    import cupy

    wanted = name, name if entry is None else entry, cupy.cuda.runtime.getDevice()
    # With `cache` alone, the thread that compiles ahead and the one that launches could both compile the
    # kernel. Each kernel has its own lock, so that other kernels are compiled at the same time.
    with _loading.setdefault(wanted, threading.Lock()):
        return _load(*wanted)


@cache
def _load(name: str, entry: str, device: int) -> Any:
    """Return a kernel for one device; a kernel compiled and loaded for one device is not valid on another."""
    import cupy

    if "<" not in entry:
        kernel = cupy.RawKernel(read_source(name), entry, options=OPTIONS)
        kernel.compile()  # or the first launch would, and a thread that compiles ahead launches nothing
        return kernel
    # One instance at a time: `cast` has 132, of which a program uses one or two.
    module = cupy.RawModule(code=read_source(name), options=OPTIONS, name_expressions=(entry,))
    return module.get_function(entry)


@cache
def find_nvrtc() -> Any:
    """Return CuPy's binding of NVRTC, or None if the binding or the library is missing."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()  # the binding loads the library with the first call
    except (ImportError, RuntimeError, OSError):
        return None
    return nvrtc
