"""Fixtures for the whole suite: signals, garbage collection, and a fork server to share."""

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras's own default, TensorFlow, may be missing

from gpuloader import DataLoader
from gpuloader.fetch import read_ahead
from gpuloader.fetch.processes import fork_server
from gpuloader.fetch.processes.fork_server import ForkServer
from gpuloader.sources.images import resampling
from gpuloader.sources.images.resampling import LateResizer, compile_function
from gpuloader.testing import simulated_places
from gpuloader.watch import read_ahead_policy

# An example may take long on a busy machine, which says nothing about the code. Each run of the suite draws
# few, and others than the last one; `--hypothesis-profile=thorough` draws many.
settings.register_profile("suite", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("suite")
# For `make mutants`, which only asks whether any example fails, and not for the smallest one.
settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=150,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in helpers only: tests have none, and to look through them takes seconds."""
    collectors = yield
    return [one for one in collectors if file_path.name[:5] != "test_" or type(one) is pytest.Module]


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
def forked_workers_know_the_libraries() -> None:
    """Search for libraries with threads once, when all tests are imported, and not in each forked worker."""
    import tests.forking  # noqa: F401


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
def running_server() -> ForkServer:
    """Return a fork server that runs until the end of the session."""
    from tests.forking import OneSample

    server = ForkServer()
    with pytest.MonkeyPatch.context() as patch:
        use_server(server, patch)
        loader = DataLoader(OneSample(), places="cpu", num_workers=1, start_method="forkserver")
        assert len(list(loader)) == 1
    return server


def use_server(server: ForkServer, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fork_server, "ForkServer", lambda: server)
    # The environment would replace it for each test, whose name pytest sets there.
    patch.setattr(fork_server, "_inherited", lambda: (os.getpid(),))


@pytest.fixture
def shared_server(running_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all loaders have one fork server: starting one takes longer than most tests.

    `test_fork_server` proves that each loader starts its own, and ends it.
    """
    use_server(running_server, monkeypatch)


@pytest.fixture
def threads_never_pay(monkeypatch):
    """Nothing takes longer than what a hand-over is said to cost."""
    for module, name in ((read_ahead_policy, "PAYS"), (read_ahead, "PAYS"), (read_ahead_policy, "LONG")):
        monkeypatch.setattr(module, name, 10**12)


@pytest.fixture(params=["cpu", "simulated"])
def place(request: pytest.FixtureRequest) -> object:
    """Return a place in host memory, and one on a simulated device."""
    return "cpu" if request.param == "cpu" else simulated_places(1)[0]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function that makes this process a rank of a run that torchrun has started."""
    # If a program imports Accelerate, variables alone make no rank; another test may have imported it.
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)

    def become(rank: int, world_size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return become
