"""Daemon threads that loop over loaders until the interpreter has gone end without a word."""

import pytest

from tests.fetch import faulty

PROGRAM = """
import logging  # not while a thread forks: what it registers for after forks lacks what it does before them
import sys, threading, time
import numpy as np
from gpuloader import DataLoader
from tests.sample_sets import Made

OPTIONS = {
    "inline": {"use_buffer_reader": False},
    "ahead": {"use_buffer_reader": "thread"},
    "thread": {"num_workers": 2, "worker_type": "thread"},
}


def slow(index):
    time.sleep(0.001)
    return np.zeros(2)


def loop(method, turning):
    options = OPTIONS.get(method, {"num_workers": 1, "start_method": method})
    while True:
        for batch in DataLoader(Made(slow, 20), places="cpu", batch_size=2, **options):
            turning.release()


def read(method, turning):
    loader = DataLoader.from_generator(capacity=2, return_list=True)
    loader.set_batch_generator(lambda: iter([np.zeros(2)] for _ in range(10)), places="cpu")
    while True:
        for batch in loader:
            turning.release()


if __name__ == "__main__":
    begun = []
    for method in sys.argv[1:]:
        begun.append(threading.Semaphore(0))
        for _ in range(2):
            arguments = method, begun[-1]
            threading.Thread(target=read if method == "reader" else loop, args=arguments, daemon=True).start()
    for turning in begun:
        for _ in range(20):
            turning.acquire()
    print("done")
"""


@pytest.mark.parametrize("methods", ["inline ahead reader thread", "fork forkserver spawn"])
def test_loops_in_daemon_threads_end_in_silence(methods):
    done = faulty.run_program(PROGRAM, *methods.split())
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_a_loop_that_was_cut_short_does_not_seem_to_be_over():
    """What follows the loop, such as saving a model, does not run; `finally` does."""
    done = faulty.run_program(
        """
import atexit, threading
import numpy as np
from gpuloader import DataLoader
from gpuloader.system import threads as exiting

begun, may_end = threading.Event(), threading.Event()


def loop():
    try:
        for number, batch in enumerate(DataLoader(np.arange(9), places="cpu")):
            begun.set()
            may_end.wait()
        print("saved", number)
    finally:
        print("left")


def leave():
    may_end.set()
    thread.join()


atexit.register(leave)
exiting.exit_first()
thread = threading.Thread(target=loop, daemon=True)
thread.start()
begun.wait()
"""
    )
    assert (done.stdout, done.stderr, done.returncode) == ("left\n", "", 0)
