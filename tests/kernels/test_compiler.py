import threading

import pytest

from benchmarks.gpu import compiling
from gpuloader.kernels import compiler

needs_nvrtc = pytest.mark.skipif(compiler.find_nvrtc() is None, reason="NVRTC is not installed")


def test_entries_are_named_as_in_cpp():
    assert compiling.kernel_entries("spin") == ("spin",)
    assert "gather<unsigned int>" in compiling.kernel_entries("gather")


@needs_nvrtc
def test_every_entry_compiles():
    """Of one kernel; `make kernels` compiles them all, some of them for three architectures and alone."""
    for entries in (None, compiling.kernel_entries("one_hot")[:1]):
        assert compiling.compile_kernel("one_hot", 90, entries)[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.parametrize(
    "source",
    [
        "__global__ void spin( {",
        'extern "C" __global__ void spin() { int unused; }',
        "__global__ void other() {}",
    ],
    ids=["error", "warning", "missing entry"],
)
def test_errors_and_warnings_fail(monkeypatch, source):
    monkeypatch.setattr(compiling, "read_source", lambda name: source)
    with pytest.raises(compiling.CompileError, match="sm_90"):
        compiling.compile_kernel("spin", 90)


def test_only_what_depends_on_the_architecture_is_compiled_for_the_newer_ones():
    """A branch elsewhere in a header has to be added to `branching_entries`."""
    lines = [line for header in compiling.SOURCES.glob("*.cuh") for line in header.read_text().splitlines()]
    branches = [line for line in lines if "__CUDA_ARCH__" in line]
    assert branches == ["#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800"]
    names = {name for name in compiler.kernel_names() if "__CUDA_ARCH__" in compiler.read_source(name)}
    assert names == {name for name in compiler.kernel_names() if compiling.branching_entries(name)}
    assert compiling.branching_entries("mixup") == ("blend<Bfloat16>",)
    assert compiling.branching_entries("normalize") == compiling.kernel_entries("normalize")


def test_what_is_included_is_part_of_the_source():
    assert "#include" not in compiler.read_source("cast")
    assert "struct Bfloat16" in compiler.read_source("cast")


def test_a_template_is_loaded_by_its_types(monkeypatch):
    """Plain names use RawKernel, templates RawModule; tests/gpu tests what these compile."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    modules = []

    class Module:
        def __init__(self, **options):
            modules.append(options)

        def get_function(self, entry):
            return entry

    class Kernel:
        def __init__(self, source, name, options):
            self.name, self.compiled = name, 0

        def compile(self):
            self.compiled += 1

    monkeypatch.setattr(cupy, "RawModule", Module)
    monkeypatch.setattr(cupy, "RawKernel", Kernel)
    current = [0]
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: current[0])
    compiler._load.cache_clear()
    load = compiler.load_kernel
    try:
        assert load("gather", "gather<uint4>") == "gather<uint4>"
        assert modules[0]["name_expressions"] == ("gather<uint4>",)
        assert load("shuffle", "hash_numbers").name == "hash_numbers"
        assert load("shuffle", "hash_numbers").compiled == 1
        first = load("spin")
        assert first.name == "spin"
        assert load("spin") is load("spin", "spin") is first
        current[0] = 1  # kernels are loaded per device
        assert load("spin") is not first
        load("gather", "gather<uint4>")
        assert len(modules) == 2
        current[0] = 0
        assert load("spin") is first
    finally:
        compiler._load.cache_clear()


def test_a_kernel_that_several_threads_want_is_compiled_once(monkeypatch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    begun, go_on, made, found = threading.Event(), threading.Event(), [], []

    class Kernel:
        def __init__(self, source, name, options):
            made.append(self)

        def compile(self):
            begun.set()
            assert go_on.wait(60)

    monkeypatch.setattr(cupy, "RawKernel", Kernel)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 7)
    threads = [threading.Thread(target=lambda: found.append(compiler.load_kernel("spin"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    assert not found
    go_on.set()
    for thread in threads:
        thread.join()
    compiler._load.cache_clear()
    assert len(made) == 1
    assert found == made * 3


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compiling, "find_nvrtc", lambda: None)
    with pytest.raises(compiling.CompileError, match=r"pip install '.*\[kernels\]'"):
        compiling.compile_kernel("spin", 90)
