"""Builds kernels for the CPU through the shim."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuloader.kernels.compiling import read_source

HERE = Path(__file__).parent
COMPILER = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Return a function from a kernel's name and a C++ launcher to a loaded library."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, so kernels cannot run on the CPU")

    def build_kernel(name, launcher):
        folder = tmp_path_factory.mktemp(name)
        source = folder / f"{name}.cpp"
        source.write_text(f'#include "shim.h"\n{read_source(name)}\n{launcher}\n')
        library = folder / f"{name}.so"
        subprocess.run(
            [*COMPILER, f"-I{HERE}", "-o", library, source],
            check=True,
        )
        return ctypes.CDLL(str(library))

    return build_kernel
