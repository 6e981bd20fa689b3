"""What workers see of the program: with PyTorch on Linux, all that it has set before they start."""

import logging
import multiprocessing
import os
import sys

import numpy as np
import pytest
import torch

from tests.torch_suite.datasets import Made

pytestmark = pytest.mark.skipif(
    multiprocessing.get_all_start_methods()[0] != "fork", reason="Python does not fork here"
)

SETTING = "as imported"
REGISTRY = {}


def ask(lib, question, **options):
    """Return what a function returns in each of two workers."""
    loader = lib.DataLoader(Made(lambda index: question(), 4), 2, num_workers=2, collate_fn=list, **options)
    first, second = loader
    assert first == second
    return first[0]


def look_around():
    umask = os.umask(0)
    os.umask(umask)
    return {
        "global": SETTING,
        "attribute of a class": vars(Made).get("factor"),
        "registry": sorted(REGISTRY),
        "replaced function": os.path.basename("a/b"),
        "level of a logger": logging.getLogger(__name__).level,
        "environment": os.environ["COLOR"],
        "folder": os.getcwd(),
        "path": sys.path[-1],
        "arguments": sys.argv,
        "default dtype": torch.get_default_dtype(),
        "errors of NumPy": np.geterr()["divide"],
        "umask": umask,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": os.sched_getaffinity(0),
    }


def test_settings_of_the_program(lib, persistent, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules[__name__], "SETTING", "changed")
    monkeypatch.setattr(Made, "factor", 7, raising=False)
    monkeypatch.setitem(REGISTRY, "resize", len)
    monkeypatch.setattr(logging.getLogger(__name__), "level", logging.ERROR)
    monkeypatch.setenv("COLOR", "green")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    monkeypatch.setattr(os.path, "basename", lambda path: "replaced")
    umask = os.umask(0o027)
    torch.set_default_dtype(torch.float64)
    try:
        with np.errstate(divide="raise"):
            here = look_around()
            assert here["global"] == "changed"
            assert here["umask"] == 0o027
            assert ask(lib, look_around, **persistent) == here
    finally:
        torch.set_default_dtype(torch.float32)
        os.umask(umask)


def test_computing_takes_one_thread(lib, persistent):
    torch.set_num_threads(2)
    try:
        assert ask(lib, torch.get_num_threads, **persistent) == 1
    finally:
        torch.set_num_threads(1)  # as conftest.py has it


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_shared_memory_is_written_and_read_by_both_sides(lib, kind, persistent):
    seen, epoch = torch.zeros(8, dtype=torch.int64).share_memory_(), torch.zeros(1).share_memory_()
    if kind == "arrays":
        seen = torch.frombuffer(multiprocessing.Array("q", 8).get_obj(), dtype=torch.int64)
        epoch = np.frombuffer(multiprocessing.Array("d", 1).get_obj())

    def count(index):
        seen[index] += 1
        return int(epoch[0])

    loader = lib.DataLoader(Made(count, 8), 2, num_workers=2, **persistent)
    for number in range(3):
        epoch[0] = number
        assert [batch.tolist() for batch in loader] == [[number] * 2] * 4
    assert seen.tolist() == [3] * 8


def test_values_and_queues(lib):
    """In a dataset that cannot be pickled."""
    count, queue = multiprocessing.Value("i", 0), multiprocessing.SimpleQueue()

    def tell(index):
        with count.get_lock():
            count.value += 1
        queue.put(index)
        return index

    assert len(list(lib.DataLoader(Made(tell, 8), 2, num_workers=2))) == 4
    assert count.value == 8
    assert sorted(queue.get() for _ in range(8)) == list(range(8))
