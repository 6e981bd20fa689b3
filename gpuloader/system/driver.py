"""Queries to the NVIDIA driver itself: the newest CUDA version it supports, and a thread's capture mode.

This imports nothing else, so the Makefile runs it before anything is installed. It prints the major
version, or nothing without a driver.
"""

import ctypes
from functools import cache

RELAXED = 2
"""The mode in which a thread's calls neither fail during a capture nor end the capture."""


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


def exchange_capture_mode(mode: ctypes.c_int) -> None:
    """Set the calling thread's capture mode, and leave the previous one in `mode`; nothing without a driver.

    >>> mode = ctypes.c_int(RELAXED)
    >>> exchange_capture_mode(mode)  # `mode` is now 0 for 'global', with which each thread begins
    >>> exchange_capture_mode(mode)
    """
    driver = _load()
    if driver is not None and driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) != 0:
        mode.value = 0  # nothing was exchanged; a thread that nobody has changed is in this mode


class Relaxed:
    """A block whose calls do not disturb the user's captures, in any thread."""

    # While a stream is captured in CUDA's mode 'global', which PyTorch uses, calls that allocate, free, pin,
    # load or query events fail in all threads and end the capture. The user's threads get their own mode
    # back afterwards, because it protects them from their own mistakes.

    __slots__ = ("_exchanged",)

    def __enter__(self) -> None:
        self._exchanged = ctypes.c_int(RELAXED)
        exchange_capture_mode(self._exchanged)

    def __exit__(self, *error: object) -> None:
        exchange_capture_mode(self._exchanged)


if __name__ == "__main__":
    print(find_cuda_version() // 1000 or "")  # noqa: T201 - to the Makefile
