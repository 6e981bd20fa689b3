"""Threads, descriptors, mappings and memory neither leak nor grow, not even when the process exits."""

import os

import numpy as np
import pytest

from tests.fakes import leave_early, nothing_left_behind
from tests.fetch.faulty import run_program
from tests.loading import read_batches


def endless():
    buffer = np.zeros((4, 8), np.float32)
    while True:
        yield [buffer]


@pytest.mark.parametrize("ending", ["break", "dropped", "exception", "cycle", "closed"])
def test_a_thousand_loaders_leave_nothing(ending):
    with nothing_left_behind():
        for _ in range(200):  # the five endings make a thousand
            loader = read_batches(endless)
            leave_early(loader, ending)
        del loader


def test_memory_is_flat():
    """The loader only uses the memory of its slots: 20,000 more batches do not make the process larger."""
    loader = read_batches(endless, capacity=4)
    epoch = iter(loader)
    for _ in range(2000):
        next(epoch)
    before = resident_bytes()
    for _ in range(20_000):
        next(epoch)
    assert resident_bytes() - before < 1 << 20


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_kept_batches_are_all_the_memory_that_grows():
    with nothing_left_behind():
        loader = read_batches(endless)
        kept = [batch for (batch,), _ in zip(loader, range(500), strict=False)]
        assert len({batch.ctypes.data for batch in kept}) == 500
        del loader, kept


def test_the_interpreter_exits_at_once_and_in_silence():
    done = run_program("""
        import threading, numpy as np
        from gpuloader import DataLoader

        def reader():
            yield [np.zeros((4, 4))]
            threading.Event().wait()  # for ever

        def endless():
            while True:
                yield [np.zeros((4, 4))]

        held = []
        for read, batches in ((endless, 1), (reader, 1), (endless, 9), (endless, None)):
            loader = DataLoader.from_generator(capacity=3, iterable=batches is not None)
            loader.set_batch_generator(read, places="cpu")
            if batches is None:
                held.append(loader.start())
            else:
                epoch = iter(loader)
                held.append([epoch, [next(epoch) for _ in range(batches)]])
            held.append(loader)
        print("done")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
