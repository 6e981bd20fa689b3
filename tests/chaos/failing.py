"""System calls that fail: a library in C, preloaded into the attacked program, makes one call fail once."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.case import Fault

CALLS = {
    "call poll": errno.EAGAIN,
    "call recvmsg": errno.ENOBUFS,
    "call sendmsg": errno.ENOMEM,
    "call send": errno.ENOBUFS,
    "call recv": errno.ENOMEM,
    "call pwrite64": errno.ENOSPC,
    "call ftruncate64": errno.ENOMEM,
    "call memfd_create": errno.EMFILE,
    "call socketpair": errno.ENFILE,
    "call madvise": errno.EAGAIN,
    "call read": errno.EIO,
    "call write": errno.EIO,
    "call close": errno.EINTR,
    "call pipe2": errno.ENFILE,
    "call fork": errno.EAGAIN,
    "call mmap64": errno.ENOMEM,
}
"""The kinds of these faults, and what each call fails with."""

HARMLESS = ("call poll", "call madvise", "call close")
"""Those that a program does not notice: another attempt succeeds, or nothing is lost."""

OF_PYTHON = ("call read", "call write", "call close", "call pipe2", "call fork", "call mmap64")
"""Those with which `multiprocessing` itself starts a process that is not forked."""

_VARIABLE = "GPULOADER_CHAOS_CALL"


def build(folder: Path) -> dict[str, str]:
    """Compile the library into a folder, and return what preloads it; nothing without a compiler."""
    compiler, target = shutil.which("cc"), folder / "failing.so"
    if compiler is None:
        return {}
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(target)}


def arm(name: str = "", spared: int = 0, code: int = 0) -> None:
    """Make a system call of this process and its forks fail, after so many; none by default."""
    fail = getattr(ctypes.CDLL(None), "chaos_fail", None)
    if fail is not None:
        fail(name.encode(), spared, code)


@contextmanager
def failing(fault: Fault) -> Iterator[None]:
    """Make one system call of each process fail within the block."""
    what = fault.kind.removeprefix("call "), fault.at, CALLS[fault.kind]
    os.environ[_VARIABLE] = " ".join(map(str, what))
    arm(*what)
    try:
        yield
    finally:
        arm()
        del os.environ[_VARIABLE]


def arm_as_told() -> None:
    """Do as the program does that has started this process, which it did not fork."""
    if _VARIABLE in os.environ:
        name, spared, code = os.environ[_VARIABLE].split()
        arm(name, int(spared), int(code))
