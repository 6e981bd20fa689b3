"""Compiles kernels without a GPU: ``python -m benchmarks.gpu.compiling`` takes every kernel.

Warnings are errors. It needs NVRTC, with which CuPy compiles on a GPU.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpuloader import kernels
from gpuloader.errors import install_command
from gpuloader.kernels.compiler import CPP_TYPES, OPTIONS, find_nvrtc, kernel_names, read_source
from gpuloader.system.platforms import usable_cores

# Compute capabilities times ten: of Turing, the oldest that CUDA 13 knows, Hopper and Blackwell. The kernels'
# own branches are these: with or without instructions for bfloat16, and how many threads a multiprocessor
# holds. Only what has branches is compiled for all three: every entry takes 40 s of a core for each.
OLDEST, *NEWER = ARCHITECTURES = (75, 90, 120)
SOURCES = Path(kernels.__path__[0])


class CompileError(Exception):
    """A kernel does not compile without errors and warnings; the message has the compiler's output."""


def kernel_entries(name: str) -> tuple[str, ...]:
    """Return the entries that can be launched from a kernel's file: C++ names, with types for templates."""
    module = import_module(f"gpuloader.kernels.{name}")
    listed: dict[str, tuple[Any, ...]] = getattr(module, "ENTRIES", {name: ()})
    return tuple(
        entry.format(*(CPP_TYPES.get(one, one) for one in types))
        for entry, lists in listed.items()
        for types in product(*lists)
    )


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


def branching_entries(name: str) -> tuple[str, ...]:
    """Return the entries of a kernel whose code depends on the architecture.

    The oldest one is enough for all others, since the newer ones have its instructions.
    """
    entries = kernel_entries(name)
    if "__CUDA_ARCH__" in (SOURCES / f"{name}.cu").read_text():
        return entries
    return tuple(entry for entry in entries if "Bfloat16" in entry)  # numbers.cuh rounds to it in two ways


def main() -> int:
    """Compile every kernel for what matters to it and print one line each; return 0 if all compiled."""

    def attempt(wanted: tuple[str, int, tuple[str, ...]]) -> tuple[bool, str]:
        name, architecture, entries = wanted
        line = f"{name:12} sm_{architecture:<4}"
        try:
            made = compile_kernel(name, architecture, entries)
        except CompileError as error:
            # The others are still compiled, so that one run shows all errors.
            return False, f"{line} FAILED\n{error}"
        return True, f"{line} {len(entries):4} entries {len(made):11,} bytes"

    every = {name: kernel_entries(name) for name in kernel_names()}
    wanted = [(name, OLDEST, every[name]) for name in every]
    branching = {name: entries for name in every if (entries := branching_entries(name))}
    wanted += [(name, newer, branching[name]) for name in branching for newer in NEWER]
    # CuPy compiles single entries. Code that only other entries use must not cause a warning.
    wanted += [(name, 90, (one,)) for name in every for one in {every[name][0], every[name][-1]}]
    has_failed = False
    with ThreadPoolExecutor(usable_cores()) as pool:  # NVRTC runs without the GIL
        for is_compiled, line in pool.map(attempt, wanted):
            has_failed |= not is_compiled
            print(line, flush=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
