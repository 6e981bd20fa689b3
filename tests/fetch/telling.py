"""What samples tell of the process that reads them. Without pytest, which would slow down every process."""

import os
import resource
import sys
from multiprocessing import shared_memory


def print_surroundings(index):
    print("sample", index)
    return os.environ.get("CUDA_VISIBLE_DEVICES") == "", "cupy" in sys.modules


def parent_of(_):
    return os.getppid()


def inherited(_):
    return os.getcwd(), os.environ.get("COLOR", "none"), os.environ["CUDA_VISIBLE_DEVICES"], sys.path[-1]


def handed(_):
    """Return what a process hands down to those that it starts."""
    mask = os.umask(0)
    os.umask(mask)
    cores = len(os.sched_getaffinity(0))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return mask, os.getpriority(os.PRIO_PROCESS, 0), limit, cores


def read_name(names, index):
    """Return a packed name, and how often its worker maps the memory of such lists."""
    with open("/proc/self/maps") as maps:
        mapped = sum("gpuloader-list" in line for line in maps)
    return names[index], mapped, os.getpid()


def read_segment(name, index):
    """Return a byte of a segment of shared memory, attached to in each worker."""
    segment = shared_memory.SharedMemory(name)
    try:
        return int(segment.buf[index])
    finally:
        segment.close()
