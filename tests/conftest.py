"""Fixtures for the whole suite: signals, garbage collection, and the full MNIST file if there is one."""

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras's own default, TensorFlow, may be missing

from gpuloader.sources.images import resampling
from gpuloader.sources.images.resampling import LateResizer, compile_function

# An example may take long on a busy machine, which says nothing about the code.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")
# For `make mutants`, which only asks whether any example fails, and not for the smallest one.
settings.register_profile(
    "mutants", deadline=None, database=None, derandomize=True, phases=[Phase.explicit, Phase.generate]
)

BESIDE_THE_REPOSITORY = Path(__file__).parents[2] / "shared" / "data" / "mnist.json.gz"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Return ids without addresses or times, because processes that share the tests must agree on them."""
    if isinstance(val, bytes):
        return f"{argname}-{len(val)}"
    return argname if " at 0x" in repr(val) else None


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """Restore the default SIGINT handler, because shells make background jobs ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def what_is_there_is_no_garbage():
    """Exclude objects that exist before a module's tests from garbage collection, which many tests call."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def forked_workers_know_the_libraries() -> Iterator[None]:
    """Search for libraries with threads once, as half of a forked worker's start is that search."""
    try:
        import threadpoolctl
    except ImportError:
        yield
        return
    found = threadpoolctl.ThreadpoolController()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threadpoolctl, "threadpool_limits", lambda limits: found.limit(limits=limits))
        yield


@pytest.fixture(scope="session", autouse=True)
def pillow_resizes():
    """Let Pillow resize all pictures, except in the tests of compiled code, whatever ran before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "LATE_RESIZER", LateResizer(load_after=sys.maxsize))
        yield


@pytest.fixture(scope="session")
def compiled_resizer(tmp_path_factory: pytest.TempPathFactory) -> resampling.Resizer | None:
    """Return the resizer of Numba, which one of the processes that share the tests compiles for all."""
    pytest.importorskip("numba")
    with open(tmp_path_factory.getbasetemp().parent / "resizer.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return compile_function("resize")


@pytest.fixture(params=["Pillow", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have all pictures resized by Pillow, or by compiled code, which decodes them in part."""
    picture_files = pytest.importorskip("tests.picture_files")
    compiled = request.param == "compiled"
    picture_files.choose_resizer(
        monkeypatch, request.getfixturevalue("compiled_resizer") if compiled else None
    )
    return str(request.param)


@pytest.fixture(scope="session")
def mnist_file() -> Path:
    path = Path(os.environ.get("GPULOADER_MNIST", BESIDE_THE_REPOSITORY))
    if not path.is_file():
        pytest.skip(f"the full MNIST is not at {path}; set GPULOADER_MNIST to a mnist.json.gz")
    return path


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function that makes this process a rank of a run that torchrun has started."""

    def become(rank: int, world_size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return become
