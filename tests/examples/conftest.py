"""Examples compute in one thread: their models are too small for more, and sums are then the same ones."""

import runpy
import signal
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def one_thread(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(one_thread, monkeypatch, capsys):
    """Return a function that runs an example here, where PyTorch is imported, and returns its output."""

    def run(name, *arguments):
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        monkeypatch.setattr(sys, "argv", list(map(str, [f"{name}.py", *arguments])))
        try:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return capsys.readouterr().out

    return run
