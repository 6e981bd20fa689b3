"""Looking at processes by way of /proc, which needs nothing of the package, and sending them signals."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def parents() -> dict[int, int]:
    """Return all processes and their parents, by their ids."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    return {pid: int(stat[1]) for pid in pids if (stat := _stat(pid))}


def descendants(pid: int) -> list[int]:
    """Return the processes below one, by their ids."""
    all_processes, found, below = parents(), set(), {pid}
    while below:
        below = {child for child, parent in all_processes.items() if parent in below and child not in found}
        found |= below
    return sorted(found)


def _stat(pid: int) -> list[str]:
    """Return the state of a process and what follows it in its stat file; nothing if it has gone."""
    try:
        descriptor = os.open(
            f"/proc/{pid}/stat", os.O_RDONLY
        )  # by a file object it takes several times as long
        try:
            return os.read(descriptor, 4096).decode(errors="replace").rpartition(")")[2].split()
        finally:
            os.close(descriptor)
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def is_stopped(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] in "Tt"


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def is_tracker(pid: int) -> bool:
    """Return whether a process is `multiprocessing`'s resource tracker, which belongs to Python."""
    return "resource_tracker" in command(pid)


def marked(mark: str) -> list[int]:
    """Return the running processes that have inherited an environment with this mark."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError):
                if mark.encode() in Path(f"/proc/{entry}/environ").read_bytes() and is_running(int(entry)):
                    found.append(int(entry))
    return found


def send(pid: int, number: int) -> bool:
    """Send a signal; return False if the process has gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, which would end it otherwise."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def ask_for_stacks(pids: list[int]) -> None:
    """Make processes write the stacks of all their threads to their standard error."""
    for pid in pids:
        if catches(pid, signal.SIGUSR1):
            send(pid, signal.SIGUSR1)


def run_in_fork(work: Callable[[], object]) -> None:
    """Run a function in a forked child; fail with the child's traceback if it raises, or if it crashes."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        problem = ""
        try:
            work()
        except BaseException:
            problem = traceback.format_exc()
        os.write(writer, problem.encode()[-4000:])
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        problem = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not problem, problem
    assert not code, f"the child exited with code {code}"
