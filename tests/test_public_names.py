"""The public names. A change to them is a change for users and belongs in the changelog."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuloader
from tests.public_api import FILE, MODULES, describe, describe_api, find

TWO = np.float64(2)


def test_the_public_face_is_the_one_that_is_written_down():
    """After an intended change, run ``python -m tests.public_api > tests/public_api.txt``."""
    written = FILE.read_text().splitlines()
    found = describe_api()
    assert [line for line in written if line not in found] == []  # removed or changed
    assert found == written


def test_whoever_lists_public_names_is_described():
    package = Path(gpuloader.__file__).parent
    listing = {
        ".".join(["gpuloader", *path.relative_to(package).with_suffix("").parts]).removesuffix(".__init__")
        for path in package.rglob("*.py")
        if "\n__all__ = " in path.read_text()
    }
    described = {find(module).__name__ for module in MODULES}
    assert listing <= described


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_says_what_it_is(module):
    found = find(module)
    assert all(getattr(found, name).__doc__ for name in found.__all__)
    assert len(set(found.__all__)) == len(found.__all__)


def test_the_description_notices_what_users_would():
    """It has the names, kinds and defaults of parameters and the attributes, and is the same in every run."""

    class Public:
        def __init__(self, a, /, b=1.5, *rest, c=TWO, d=len, **more):
            pass

        field: int

        @property
        def read(self):
            """Read."""

        @classmethod
        def make(cls, x=None):
            """Make."""

        @staticmethod
        def check(x, *, y=()):
            """Check."""

        def _hidden(self):
            """Hide."""

    Public.__module__ = "gpuloader.somewhere"
    assert sorted(describe("p", Public)) == [
        "p(a, /, b=1.5, *rest, c=2.0, d=len, **more)",
        "p.check(x, *, y=())",
        "p.field: attribute",
        "p.make(x=None)",
        "p.read: attribute",
    ]
    assert describe_api() == describe_api()
    assert not any(" at 0x" in line for line in describe_api())


def test_importing_the_package_imports_no_gpu_library_and_nothing_for_tests():
    """On a machine without a GPU, GPU support must cost no time and cause no failure."""
    code = "import gpuloader, sys; print(*sorted(sys.modules))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in listed.stdout.split()}
    assert "gpuloader" in loaded
    assert not loaded & {"cupy", "torch", "jax", "paddle", "keras", "pandas", "polars", "datasets"}
    assert not loaded & {"matplotlib", "rich", "pyarrow", "ray", "fsspec"}
    assert "gpuloader.testing" not in listed.stdout.split()


def test_no_module_hides_a_public_name():
    """Importing a module puts it into its package, over a function of the same name."""
    public_modules = {line.partition(":")[0] for line in FILE.read_text().splitlines() if ": module" in line}
    there = {f"gpuloader.{name}" for _, name, _ in pkgutil.iter_modules(gpuloader.__path__)}
    assert there & {f"gpuloader.{name}" for name in gpuloader.__all__} <= public_modules


def test_an_error_is_a_loader_error_and_the_builtin_one_a_caller_may_expect():
    errors = [getattr(gpuloader, name) for name in gpuloader.__all__ if name.endswith(("Error", "Exception"))]
    assert len(errors) == 12  # one has two names
    assert all(issubclass(error, gpuloader.LoaderError) for error in errors)
    builtin = {
        "ComposeNotAligned": ValueError,
        "FeedError": ValueError,
        "LoaderError": RuntimeError,
        "MissingPackage": ImportError,
        "PlaceError": ValueError,
        "ReaderError": TypeError,
        "SampleError": ValueError,
        "SourceError": OSError,
        "StagingMemoryError": MemoryError,
        "WorkerError": RuntimeError,
        "WorkerTimeout": TimeoutError,
    }
    for name, base in builtin.items():
        assert issubclass(getattr(gpuloader, name), base)
        assert issubclass(getattr(gpuloader, name), RuntimeError)  # as all of PyTorch's are
