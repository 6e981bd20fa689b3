"""What the NVIDIA driver itself is asked: the newest CUDA that it supports, and how a thread meets captures.

Nothing else is imported, so the Makefile runs this file before anything is installed: it prints the major
version, or nothing without a driver.
"""

import ctypes
from functools import cache

RELAXED = 2
"""The mode in which a thread's calls neither fail because a stream is captured, nor end the capture."""


@cache
def _load() -> ctypes.PyDLL | None:
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.PyDLL(name)  # keeps the GIL: these calls take less time than giving it up
        except OSError:
            continue
    return None


def find_cuda_version() -> int:
    """Return the version as 1000 major + 10 minor; 0 without a driver."""
    # Not from nvidia-smi, which a container may lack, and whose banner has changed. The call initializes
    # nothing, so it needs no device and creates no context.
    driver, version = _load(), ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return 0
    return version.value


def show_cuda(number: int) -> str:
    """Return a CUDA version number as people write it.

    >>> show_cuda(13020)
    '13.2'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


def exchange_capture_mode(mode: int) -> int:
    """Set in which mode the calling thread meets captures; return the one before, at first 0 for 'global'.

    >>> before = exchange_capture_mode(RELAXED)
    >>> _ = exchange_capture_mode(before)
    """
    driver, found = _load(), ctypes.c_int(mode)
    if driver is None or driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(found)) != 0:
        return 0
    return found.value


class Relaxed:
    """A block whose calls leave alone what the user captures, in whichever thread."""

    # While a stream is captured in CUDA's mode 'global', which is PyTorch's, calls that allocate, free, pin,
    # load or ask for events are refused to all threads and end the capture. The user's threads get their mode
    # back, which protects them from their own mistakes.

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = exchange_capture_mode(RELAXED)

    def __exit__(self, *error: object) -> None:
        exchange_capture_mode(self._before)


if __name__ == "__main__":
    print(find_cuda_version() // 1000 or "")  # noqa: T201 - to the Makefile
