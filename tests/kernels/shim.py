"""Kernels on the CPU: g++ builds the .cu files with shim.h, and they run with the launchers' arguments.

Device memory is host memory under real CuPy arrays, which need no driver as long as their device is given
explicitly. Unlike CUDA, the shim raises an error for an argument whose type differs from the parameter's.
"""

import ctypes
import fcntl
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from benchmarks.gpu.compiling import kernel_entries
from gpuloader.kernels.compiler import read_source

HERE = Path(__file__).parent
SANITIZED = "GPULOADER_SANITIZE" in os.environ
"""Whether kernels are built with sanitizers, which stop at undefined behavior; see sanitized.py."""

# Not optimized, and without tables for exceptions, which no kernel raises: compiling the many instantiations
# takes far longer than running them.
COMPILER = ["g++", "-std=c++17", "-O0", "-ffp-contract=off", "-fPIC", "-shared"]
COMPILER += ["-fno-exceptions", "-fno-asynchronous-unwind-tables"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror"]
SANITIZER = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FEWER = 11
"""With sanitizers, only one in so many entries of a large kernel is built; all sources and targets occur."""

MARGIN = 0 if SANITIZED else 64
"""Guard bytes before and after an array; none with a sanitizer, which needs the array at the memory's end."""


def examples(count):
    """Return hypothesis settings: `count` examples of a kernel where the profile has 100."""
    return settings(max_examples=count * (20 if SANITIZED else settings.default.max_examples) // 100)


def launch_shapes(dimensions):
    """Return a strategy for grid and block, with blocks of so many dimensions; None keeps the launcher's."""
    return st.none() | st.tuples(
        st.tuples(*[st.integers(1, 5)] * 2), st.tuples(*[st.integers(1, 70)] * dimensions)
    )


def built_entries(name):
    entries = kernel_entries(name)
    return entries[::FEWER] if SANITIZED and len(entries) > 100 else entries


def build(name, folder):
    """Build a kernel, unless another process has or is about to, and return its library."""
    library = folder / f"{name}.so"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            compile_kernel(name, library)
    return ctypes.CDLL(str(library))


def compile_kernel(name, library):
    exports = ", ".join(f"Bound<{entry}>::entry" for entry in built_entries(name))
    source, built = library.with_suffix(".cpp"), library.with_suffix(".part")
    code = read_source(name)
    barriers = "#define GPULOADER_BARRIERS\n" if "__syncthreads" in code else ""
    source.write_text(f'{barriers}#include "shim.h"\n{code}\nEXPORT({exports})\n')
    command = [*COMPILER, *WARNINGS, *(SANITIZER if SANITIZED else []), f"-I{HERE}", "-o", built, source]
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    subprocess.run(command, check=True, env=environment)
    built.rename(library)


class Kernels:
    """Loads kernels as `load_kernel` does, and records launches; `library` returns a library by name."""

    def __init__(self, library):
        self.library = library
        self.launches = []  # each as (entry, grid, block, stream)
        self.shape = None  # grid and block to use instead of the launcher's

    def load(self, name, entry=None):
        entry = name if entry is None else entry
        library, number = self.library(name), built_entries(name).index(entry)
        text = ctypes.create_string_buffer(1000)
        library.describe(number, text)
        parameters = text.value.decode().split()

        def run(grid, block, arguments, *, stream=None):
            self.launches.append((entry, grid, block, stream))
            check_shape(grid, block)
            grid, block = self.shape or (grid, block)
            shape = (ctypes.c_uint * 5)(*(*grid, 1, 1)[:3], *(*block, 1)[:2])
            assert len(arguments) == len(parameters), f"{entry} takes {parameters}, got {len(arguments)}"
            held = [
                pack(argument, parameter) for argument, parameter in zip(arguments, parameters, strict=True)
            ]
            addresses = (ctypes.c_void_p * len(held))(*(part.ctypes.data for part in held))
            library.run(number, shape, addresses)

        return run

    @staticmethod
    def allocate(nbytes):
        return point_to(np.full(max(nbytes, 1), 0xAB, np.uint8), 0)


def check_shape(grid, block):
    """Raise for a grid or block that a launch on a GPU would refuse."""
    assert 1 <= len(grid) <= 3
    assert 1 <= len(block) <= 3
    assert all(1 <= size <= limit for size, limit in zip(grid, (2**31 - 1, 65535, 65535), strict=False))
    assert all(1 <= size <= limit for size, limit in zip(block, (1024, 1024, 64), strict=False))
    assert np.prod(block) <= 1024


def pack(argument, parameter):
    """Return the bytes that CuPy passes to cuLaunchKernel for an argument; raise if their type is wrong."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

    if isinstance(argument, cupy.ndarray):
        kind = f"*{argument.dtype.kind}{argument.dtype.itemsize}"
        # Halves and bfloat16 are structures of 2 bytes in C++.
        halves = {"*s2": ("*f2", "*u2", "*V2"), "*u1": ("*u1", "*b1")}
        assert parameter == "*v" or kind in halves.get(parameter, (parameter,)), (parameter, kind)
        assert argument.flags.c_contiguous
        return np.array([argument.data.ptr], np.uint64)
    if isinstance(argument, np.generic) and argument.dtype.kind != "V":
        is_null = parameter[0] == "*" and argument.dtype == np.uint64 and argument == 0
        kind = f"{argument.dtype.kind}{argument.dtype.itemsize}"
        assert is_null or parameter == kind, (parameter, argument)
        return np.array([argument])
    assert isinstance(argument, np.ndarray), f"{parameter} cannot be passed as {argument!r}"
    assert argument.dtype.names is None, "CuPy would describe the fields in Python, at every launch"
    assert argument.size == 1, "CuPy passes arrays of one element by value, and no others"
    assert parameter == f"s{argument.itemsize}", (parameter, argument.dtype)
    aligned = np.zeros(argument.itemsize + 16, np.uint8)  # kernel parameters are aligned to 16 bytes
    start = -aligned.ctypes.data % 16
    aligned[start : start + argument.itemsize] = argument.reshape(1).view(np.uint8)
    return aligned[start : start + argument.itemsize]


def point_to(memory, offset, index=0):
    import cupy

    owner = cupy.cuda.UnownedMemory(memory.ctypes.data, memory.nbytes, memory, index)
    return cupy.cuda.MemoryPointer(owner, offset)


class Placed:
    """An `array` of CuPy in device memory, at an offset from a 64-byte boundary, between guard bytes."""

    def __init__(self, values, offset=0, index=0):
        import cupy

        values = np.asarray(values)
        memory = np.full(MARGIN + 64 + offset + values.nbytes + MARGIN, 0xAB, np.uint8)
        self.start = MARGIN + -(memory.ctypes.data + MARGIN) % 64 + offset
        self.memory = memory[: self.start + values.nbytes + MARGIN]
        if SANITIZED:  # the memory must end with the array
            self.memory, self.start = np.full(offset + values.nbytes, 0xAB, np.uint8), offset
        self.nbytes = values.nbytes
        self.inside[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.array = cupy.ndarray(values.shape, values.dtype, point_to(self.memory, self.start, index))

    @property
    def inside(self):
        return self.memory[self.start : self.start + self.nbytes]

    def check(self):
        """Raise if a guard byte was overwritten."""
        assert (self.memory[: self.start] == 0xAB).all()
        assert (self.memory[self.start + self.nbytes :] == 0xAB).all()


def place(values, offset=0):
    return Placed(values, offset).array


def read(array):
    """Return a NumPy array over the memory of a CuPy array in host memory."""
    data, shape, kind = (array.data.ptr, False), array.shape, array.dtype.str
    interface = {"data": data, "shape": shape, "typestr": kind, "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=array)).view(array.dtype)


def same_bits(one, other):
    """Raise unless two arrays agree bit for bit; where both have a NaN, its payload may differ."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    if one.dtype.kind == "f":
        nan = np.isnan(one)
        np.testing.assert_array_equal(nan, np.isnan(other))
        one, other = np.where(nan, 0, one), np.where(nan, 0, other)
    np.testing.assert_array_equal(one.view(f"u{one.itemsize}"), other.view(f"u{one.itemsize}"))


def check_refusal(launcher, twin, arguments, error, problem):
    """Raise unless a launcher and its twin refuse the same arguments with the same error."""
    with pytest.raises(error, match=problem):
        twin(**arguments)
    placed = {
        key: place(value) if isinstance(value, np.ndarray) else value for key, value in arguments.items()
    }
    with pytest.raises(error, match=problem):
        launcher(**placed)


def cut(images, windows, height, width):
    """Return windows of HWC images, cut with plain NumPy."""
    found = []
    for image, (top, left, flip) in zip(images, windows.tolist(), strict=True):
        found.append(image[top : top + height, left : left + width][:, :: -1 if flip else 1])
    return np.stack(found)


def as_floats(bits):
    """Return bfloat16 bits as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
