"""The check of most other tests that a block leaves nothing behind: it finds every kind of leak."""

import mmap
import os
import subprocess
import sys
import threading
from multiprocessing import shared_memory

import pytest

from gpuloader.staging import Arena
from tests.fakes import nothing_left_behind


def thread():
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    return lambda: (ends.set(), thread.join())


def process():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    return lambda: (process.kill(), process.wait())


def unreaped():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.wait


def descriptor():
    read, write = os.pipe()
    os.close(write)
    return lambda: os.close(read)


def segment():
    file = os.memfd_create("leaked")
    os.ftruncate(file, 100)
    mapping = mmap.mmap(file, 100)
    os.close(file)
    return mapping.close


def named_segment():
    segment = shared_memory.SharedMemory(create=True, size=100)
    os.close(segment._fd)
    segment._fd = -1
    return lambda: (segment.close(), segment.unlink())


def arena():
    kept = [Arena(100)]
    return kept.clear


LEAKS = [thread, process, unreaped, descriptor, segment, named_segment, arena]


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_found_and_what_has_ended_is_none(leak):
    with pytest.raises(AssertionError), nothing_left_behind(0.01):
        end = leak()
    end()
    with nothing_left_behind():
        leak()()


def test_a_descriptor_instead_of_another_is_found():
    before = os.open(os.devnull, os.O_RDONLY)
    with pytest.raises(AssertionError), nothing_left_behind(0.01):
        os.close(before)
        end = descriptor()
    end()


def test_what_ends_by_itself_is_waited_for():
    with nothing_left_behind():
        threading.Timer(0.05, os.getpid).start()
