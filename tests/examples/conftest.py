"""Examples compute in one thread: their models are too small for more, and sums are then the same ones."""

import pytest


@pytest.fixture
def one_thread(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
