"""Turns a .cu file into kernels: loads them through CuPy on a GPU, or compiles them without one.

``python -m gpuloader.kernels.compiling`` compiles every kernel for every architecture and treats warnings as
errors. It needs a compiler, nvcc or NVRTC, but no GPU.

A file holds either one kernel of its own name or several entries, which its Python module lists in
``ENTRIES``: kernels of other names, or instances of a template, one per set of types that a launcher uses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from gpuloader.errors import LoaderError, install_command
from gpuloader.system.platforms import usable_cores

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
"""Compute capabilities times ten, from Turing to Blackwell: the architectures CUDA 13 compiles for."""

OPTIONS = ("--std=c++17",)
"""Compiler options passed to CuPy. CuPy adds -ftz=true itself, so `compile_kernel` adds it too."""


class CompileError(LoaderError):
    """A kernel does not compile without errors and warnings; the message has the compiler's output."""


def kernel_names() -> list[str]:
    """Return the names of all kernels, one per .cu file.

    >>> kernel_names()[:5]
    ['cast', 'checksum', 'crop', 'erase', 'gather']
    """
    files = resources.files("gpuloader.kernels").iterdir()
    return sorted(Path(file.name).stem for file in files if file.name.endswith(".cu"))


def kernel_entries(name: str) -> tuple[str, ...]:
    """Return the entries that can be launched from a kernel's file: C++ names, with types for templates.

    >>> kernel_entries("spin"), "gather<unsigned int>" in kernel_entries("gather")
    (('spin',), True)
    """
    entries: tuple[str, ...] = getattr(import_module(f"gpuloader.kernels.{name}"), "ENTRIES", (name,))
    return entries


@cache
def read_source(name: str) -> str:
    """Return the CUDA source of a kernel, with our own .cuh files expanded in place.

    CuPy caches compiled kernels by their source, so the source must contain the included files.

    >>> "__global__" in read_source("spin")
    True
    """
    folder = resources.files("gpuloader.kernels")
    source = folder.joinpath(f"{name}.cu").read_text()
    return re.sub(
        r'^#include "(\w+\.cuh)"$', lambda line: folder.joinpath(line[1]).read_text(), source, flags=re.M
    )


def load_kernel(name: str, entry: str | None = None) -> Any:
    """Return a kernel ready to launch on the current device; compile it if it is the first time there.

    CuPy keeps what it has compiled on disk. Any thread may call this. Of several that want the same kernel,
    one compiles it, and the others wait.

    Parameters
    ----------
    name : str
        The name of the kernel's file.
    entry : str or None
        One of ``kernel_entries(name)``; None is the kernel named like its file.
    """
    import cupy

    wanted = name, name if entry is None else entry, cupy.cuda.runtime.getDevice()
    with _loading.setdefault(wanted, threading.Lock()):
        return _load(*wanted)


_loading: dict[tuple[str, str, int], threading.Lock] = {}


@cache
def _load(name: str, entry: str, device: int) -> Any:  # noqa: ARG001
    """Return a kernel for one device; a kernel compiled and loaded for one device is not valid on another."""
    import cupy

    if "<" not in entry:
        kernel = cupy.RawKernel(read_source(name), entry, options=OPTIONS)
        kernel.compile()
        return kernel
    module = cupy.RawModule(code=read_source(name), options=OPTIONS, name_expressions=(entry,))
    return module.get_function(entry)


def compile_kernel(name: str, architecture: int, entries: tuple[str, ...] | None = None) -> bytes:
    """Return the machine code of entries of a kernel for one architecture; None is all of them.

    Uses NVRTC if it is installed, otherwise nvcc. Any thread may call this.

    Raises
    ------
    CompileError
        The compiler reported an error or a warning, or there is no compiler.
    """
    nvrtc, entries = find_nvrtc(), kernel_entries(name) if entries is None else entries
    if nvrtc is not None:
        return _compile_by_nvrtc(nvrtc, name, architecture, entries)
    if shutil.which("nvcc"):
        return _compile_by_nvcc(name, architecture, entries)
    raise CompileError(
        f"no CUDA compiler: install NVRTC with {install_command('kernels')}, or put nvcc on the PATH"
    )


@cache
def find_nvrtc() -> Any:
    """Return CuPy's binding of NVRTC, or None if the binding or the library is missing."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError):
        return None
    return nvrtc


def _compile_by_nvrtc(nvrtc: Any, name: str, architecture: int, entries: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(read_source(name), f"{name}.cu", (), ())
    try:
        for entry in entries:
            nvrtc.addNameExpression(program, entry)
        try:
            nvrtc.compileProgram(program, (*OPTIONS, "-ftz=true", f"-arch=sm_{architecture}"))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise CompileError(f"{name}.cu for sm_{architecture}: {error}\n{log}") from None
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


def _compile_by_nvcc(name: str, architecture: int, entries: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, f"{name}.cu"), Path(folder, f"{name}.cubin")
        # A template is compiled only where it is used; taking its address counts as a use.
        used = ", ".join(f"(void*)({entry})" for entry in entries)
        source.write_text(f"{read_source(name)}\nvoid* entries_of_{name}[] = {{{used}}};\n")
        command = ["nvcc", "-cubin", "-ftz=true", "-Werror", "all-warnings", f"-arch=sm_{architecture}"]
        done = subprocess.run(
            [*command, *OPTIONS, "-o", target, source], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CompileError(f"{name}.cu for sm_{architecture}: {done.stderr or done.stdout}")
        return target.read_bytes()


def main() -> int:
    """Compile every kernel for every architecture and print one line each; return 0 if all compiled.

    A line shows the number of compiled entries and the size of the code, or FAILED and the error. As many
    are compiled at a time as there are cores.
    """
    wanted = [(name, architecture) for name in kernel_names() for architecture in ARCHITECTURES]
    failed = 0
    with ThreadPoolExecutor(usable_cores()) as pool:
        for (name, architecture), made in zip(wanted, pool.map(_try_to_compile, wanted), strict=True):
            line = f"{name:12} sm_{architecture:<4}"
            if isinstance(made, CompileError):
                failed += 1
                print(f"{line} FAILED\n{made}", flush=True)  # noqa: T201
            else:
                entries = len(kernel_entries(name))
                print(f"{line} {entries:4} entries {len(made):11,} bytes", flush=True)  # noqa: T201
    return 1 if failed else 0


def _try_to_compile(wanted: tuple[str, int]) -> bytes | CompileError:
    try:
        return compile_kernel(*wanted)
    except CompileError as error:
        return error


if __name__ == "__main__":
    sys.exit(main())
