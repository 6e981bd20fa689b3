"""Kernels on the CPU: the .cu files built by g++ over shim.h, and run with what launchers hand to CuPy.

Device memory is host memory, under the real CuPy arrays, which need no driver as long as their device is
named. An argument that is not of the type a kernel's parameter has is an error, as it is not in CUDA.
"""

import ctypes
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings

from gpuloader.kernels.compiling import kernel_entries, read_source

HERE = Path(__file__).parent
SANITIZED = "GPULOADER_SANITIZE" in os.environ
"""Whether kernels are built to stop at whatever C++ leaves undefined; see test_sanitized.py."""

# Not optimised: there are far more instantiations to compile than there are numbers to run them on.
COMPILER = ["g++", "-std=c++17", "-O0", "-ffp-contract=off", "-fPIC", "-shared"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror"]
SANITIZER = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FEWER = 11
"""Of a kernel of very many entries, one in so many is built with sanitizers: every source, every target."""

MARGIN = 0 if SANITIZED else 64
"""Bytes before and after an array that must stay as they are; a sanitizer needs the memory's very end."""


def examples(count):
    """Return hypothesis settings for tests that build and run kernels."""
    return settings(max_examples=count // 5 if SANITIZED else count, deadline=None)


def built_entries(name):
    entries = kernel_entries(name)
    return entries[::FEWER] if SANITIZED and len(entries) > 100 else entries


def build(name, folder):
    """Return the library of a kernel."""
    exports = ", ".join(f"Bound<{entry}>::entry" for entry in built_entries(name))
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(f'#include "shim.h"\n{read_source(name)}\nEXPORT({exports})\n')
    command = [*COMPILER, *WARNINGS, *(SANITIZER if SANITIZED else []), f"-I{HERE}", "-o", library, source]
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    subprocess.run(command, check=True, env=environment)
    return ctypes.CDLL(str(library))


class Kernels:
    """Loads kernels as `load_kernel` does, and remembers what was launched.

    Attributes
    ----------
    launches : list
        (entry, grid, block, stream) of every launch.
    shape : tuple or None
        Grid and block in the place of the launcher's, to try others.
    """

    def __init__(self, build):
        self.build = build
        self.libraries = {}
        self.launches = []
        self.shape = None

    def library(self, name):
        if name not in self.libraries:
            try:
                self.libraries[name] = self.build(name)
            except subprocess.CalledProcessError as error:  # once, and not for every example
                self.libraries[name] = error
        if isinstance(library := self.libraries[name], Exception):
            raise library
        return library

    def load(self, name, entry=None):
        entry = name if entry is None else entry
        library, number = self.library(name), built_entries(name).index(entry)
        text = ctypes.create_string_buffer(1000)
        library.describe(number, text, len(text))
        parameters = text.value.decode().split()

        def run(grid, block, arguments, *, stream=None):
            self.launches.append((entry, grid, block, stream))
            check_shape(grid, block)
            grid, block = self.shape or (grid, block)
            shape = (ctypes.c_uint * 4)(*(*grid, 1)[:2], *(*block, 1)[:2])
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
    """What a launch on a GPU refuses."""
    assert 1 <= len(grid) <= 3
    assert 1 <= len(block) <= 3
    assert all(1 <= size <= limit for size, limit in zip(grid, (2**31 - 1, 65535, 65535), strict=False))
    assert all(1 <= size <= limit for size, limit in zip(block, (1024, 1024, 64), strict=False))
    assert np.prod(block) <= 1024


def pack(argument, parameter):
    """Return what CuPy lets cuLaunchKernel read for an argument, if it is what the parameter takes."""
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
        assert is_null or parameter == f"{argument.dtype.kind}{argument.dtype.itemsize}", (
            parameter,
            argument,
        )
        return np.array([argument])
    assert isinstance(argument, np.ndarray), f"{parameter} cannot be passed as {argument!r}"
    assert argument.size == 1, "CuPy passes arrays of one element by value, and no others"
    assert parameter == f"s{argument.itemsize}", (parameter, argument.dtype)
    aligned = np.zeros(argument.itemsize + 16, np.uint8)  # as a kernel's parameters are
    start = -aligned.ctypes.data % 16
    aligned[start : start + argument.itemsize] = argument.reshape(1).view(np.uint8)
    return aligned[start : start + argument.itemsize]


def point_to(memory, offset, index=0):
    import cupy

    owner = cupy.cuda.UnownedMemory(memory.ctypes.data, memory.nbytes, memory, index)
    return cupy.cuda.MemoryPointer(owner, offset)


class Placed:
    """An array in device memory, at an offset from a boundary of 64 bytes, between bytes that must stay.

    Attributes
    ----------
    array : cupy.ndarray
        The array.
    """

    def __init__(self, values, offset=0, index=0):
        import cupy

        values = np.asarray(values)
        memory = np.full(MARGIN + 64 + offset + values.nbytes + MARGIN, 0xAB, np.uint8)
        self.start = MARGIN + -(memory.ctypes.data + MARGIN) % 64 + offset
        self.memory = memory[: self.start + values.nbytes + MARGIN]
        if SANITIZED:  # memory that ends where the array does
            self.memory, self.start = np.full(offset + values.nbytes, 0xAB, np.uint8), offset
        self.nbytes = values.nbytes
        self.inside[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.array = cupy.ndarray(values.shape, values.dtype, point_to(self.memory, self.start, index))

    @property
    def inside(self):
        return self.memory[self.start : self.start + self.nbytes]

    def check(self):
        """Raise if anything around the array was written to."""
        assert (self.memory[: self.start] == 0xAB).all()
        assert (self.memory[self.start + self.nbytes :] == 0xAB).all()


def place(values, offset=0):
    return Placed(values, offset).array


def read(array):
    """Return a CuPy array on host memory as the NumPy array it is."""

    interface = {
        "data": (array.data.ptr, False),
        "shape": array.shape,
        "typestr": array.dtype.str,
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=array)).view(array.dtype)


def same_bits(one, other):
    """Raise unless two arrays are the same bit for bit, but for which NaN stands where both have one."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    if one.dtype.kind == "f":
        nan = np.isnan(one)
        np.testing.assert_array_equal(nan, np.isnan(other))
        one, other = np.where(nan, 0, one), np.where(nan, 0, other)
    np.testing.assert_array_equal(one.view(f"u{one.itemsize}"), other.view(f"u{one.itemsize}"))


def as_floats(bits):
    """Return bfloat16 bits as the floats they are."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
