"""Turns a .cu file into kernels: loads them through CuPy on a GPU, or compiles them without one.

``python -m gpuloader.kernels.compiler`` compiles every kernel for every architecture and treats warnings as
errors. It needs NVRTC, with which CuPy compiles, but no GPU.

A file holds either one kernel of its own name or several entries, which its Python module lists in
``ENTRIES``: kernels of other names, or templates, each with the types that launches use for its parameters.
"""

from __future__ import annotations

import re
import sys
import threading
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuloader.errors import LoaderError, install_command
from gpuloader.system.platforms import usable_cores

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# Compute capabilities times ten, from Turing to Blackwell: the architectures CUDA 13 compiles for.
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

# Compiler options passed to CuPy. CuPy adds -ftz=true itself, so `compile_kernel` adds it too.
OPTIONS = ("--std=c++17",)


class CompileError(LoaderError):
    """A kernel does not compile without errors and warnings; the message has the compiler's output."""


def _find_folder() -> Traversable:
    from importlib import resources  # imported late, with fifteen modules: most programs compile nothing

    return resources.files("gpuloader.kernels")


def kernel_names() -> list[str]:
    """Return the names of all kernels' files.

    >>> kernel_names()[:5]
    ['cast', 'crop', 'gather', 'mix', 'normalize']
    """
    files = _find_folder().iterdir()
    return sorted(Path(file.name).stem for file in files if file.name.endswith(".cu"))


def kernel_entries(name: str) -> tuple[str, ...]:
    """Return the entries that can be launched from a kernel's file: C++ names, with types for templates.

    >>> kernel_entries("spin"), "gather<unsigned int>" in kernel_entries("gather")
    (('spin',), True)
    """
    module = import_module(f"gpuloader.kernels.{name}")
    listed: dict[str, tuple[Any, ...]] = getattr(module, "ENTRIES", {name: ()})
    return tuple(entry.format(*types) for entry, lists in listed.items() for types in product(*lists))


@cache
def read_source(name: str) -> str:
    """Return the CUDA source of a kernel, with our own .cuh files expanded in place.

    >>> "__global__" in read_source("spin")
    True
    """
    # CuPy keeps what it has compiled on disk by a hash of the source. An included file is no part of that
    # hash, so after a change of one, the old code would run.
    folder = _find_folder()
    source = folder.joinpath(f"{name}.cu").read_text()
    return re.sub(
        r'^#include "(\w+\.cuh)"$', lambda line: folder.joinpath(line[1]).read_text(), source, flags=re.M
    )


_loading: dict[tuple[str, str, int], threading.Lock] = {}


def load_kernel(name: str, entry: str | None = None) -> Any:
    """Return a kernel ready to launch on the current device; None for the entry named like its file.

    CuPy keeps what it has compiled on disk. Any thread may call this. Of several that want the same kernel,
    one compiles it, and the others wait.
    """
    import cupy

    wanted = name, name if entry is None else entry, cupy.cuda.runtime.getDevice()
    # `cache` alone would let both the thread that compiles ahead and the one that launches compile the
    # kernel. The lock is this kernel's own, so that other kernels are compiled at the same time.
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


def compile_kernel(name: str, architecture: int, entries: tuple[str, ...] | None = None) -> bytes:
    """Return the machine code of entries of a kernel for one architecture; None is all of them.

    Any thread may call this. Raises `CompileError` if the compiler reports an error or a warning, or if there
    is none.
    """
    nvrtc, entries = find_nvrtc(), kernel_entries(name) if entries is None else entries
    if nvrtc is None:
        raise CompileError(f"no CUDA compiler: install NVRTC with {install_command('kernels')}")
    program = nvrtc.createProgram(read_source(name), f"{name}.cu", (), ())
    try:
        for entry in entries:
            nvrtc.addNameExpression(program, entry)
        try:
            nvrtc.compileProgram(program, (*OPTIONS, "-ftz=true", f"-arch=sm_{architecture}"))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise CompileError(f"{name}.cu for sm_{architecture}: {error}\n{log}") from None
        # The log of what compiled has nothing but warnings.
        if warnings := nvrtc.getProgramLog(program).strip("\0 \n"):
            raise CompileError(f"{name}.cu for sm_{architecture} compiles with warnings:\n{warnings}")
        code: bytes = nvrtc.getCUBIN(program)
        if missing := [
            entry for entry in entries if nvrtc.getLoweredName(program, entry).encode() not in code
        ]:
            raise CompileError(f"{name}.cu for sm_{architecture} lacks {', '.join(missing)}")
        return code
    finally:
        nvrtc.destroyProgram(program)


def main() -> int:
    """Compile every kernel for every architecture and print one line each; return 0 if all compiled."""
    from concurrent.futures import ThreadPoolExecutor

    def attempt(wanted: tuple[str, int]) -> tuple[bool, str]:
        name, architecture = wanted
        line = f"{name:12} sm_{architecture:<4}"
        try:
            made = compile_kernel(name, architecture)
        except CompileError as error:
            # The others are still compiled, so that one run shows all errors.
            return False, f"{line} FAILED\n{error}"
        return True, f"{line} {len(kernel_entries(name)):4} entries {len(made):11,} bytes"

    wanted = [(name, architecture) for name in kernel_names() for architecture in ARCHITECTURES]
    has_failed = False
    with ThreadPoolExecutor(usable_cores()) as pool:  # NVRTC runs without the GIL
        for is_compiled, line in pool.map(attempt, wanted):
            has_failed |= not is_compiled
            print(line, flush=True)  # noqa: T201
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
