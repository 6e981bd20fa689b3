import shutil

import pytest

from gpuloader.kernels import compiling
from gpuloader.kernels.compiling import ARCHITECTURES, CompileError, compile_kernel, find_nvrtc, kernel_names

needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="NVRTC is not installed")


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", kernel_names())
def test_every_kernel_compiles_for_every_architecture(name, architecture):
    assert compile_kernel(name, architecture)[:4] == b"\x7fELF"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name", kernel_names())
def test_nvcc_compiles_them_too(name):
    assert compiling._compile_by_nvcc(name, 90)[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.parametrize(
    "source",
    ["__global__ void broken( {", "__global__ void warns() { int unused; }"],
    ids=["error", "warning"],
)
def test_errors_and_warnings_fail(monkeypatch, source):
    monkeypatch.setattr(compiling, "read_source", lambda name: source)
    with pytest.raises(CompileError, match="sm_90"):
        compile_kernel("anything", 90)


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compiling, "find_nvrtc", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CompileError, match=r"gpuloader\[kernels\]"):
        compile_kernel("spin", 90)
