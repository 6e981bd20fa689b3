"""The program that is attacked: ``python -m tests.chaos.subject CASE FOLDER PATIENCE``.

It writes what it does as lines of JSON to its standard output. At its end it waits for a line on its standard
input, so that no signal comes too late. Whatever else it writes is a finding.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from tests.chaos import defects
from tests.chaos.acts import Acts, Ending
from tests.chaos.case import ENDS, LIMITS, LINE, OUTSIDE, SERVER, TROUBLES, Case, Fault
from tests.chaos.failing import CALLS, failing
from tests.chaos.server import spoil
from tests.chaos.sources import output_of
from tests.processes import descendants, is_tracker

_MOST_FILE = 1 << 30  # bytes, of files and of memory files
_LATE = ("numpy.random", "multiprocessing.synchronize", "multiprocessing.popen_fork", "threadpoolctl")
"""What workers import. Under a limit, an import fails in ways that are Python's and not the package's."""


def tell(**facts: Any) -> None:
    os.write(1, (json.dumps(facts) + "\n").encode())


class Program:
    """The attacked program, which can be interrupted at any time and called again."""

    def __init__(self, case: Case, folder: str, patience: float) -> None:
        self.case = case
        self.number = 0
        self.acts = Acts(case, folder, self._stepped)
        self._patience = patience
        self._told: set[int] = set()
        self._act = 0
        self._awaits_interrupt = any(fault.kind == "interrupt" and fault.who < 0 for fault in case.faults)

    def run(self) -> None:
        """Perform the acts that are left, and wait until the attack has sent its last signal."""
        while self.number < len(self.case.acts):
            self._act, self.number = self.number, self.number + 1
            try:
                self._perform(self._act)
            except Ending:
                raise
            except SystemExit as error:
                if error.code != 5:  # what a sample raises
                    raise
                self.report(error)
            except Exception as error:
                self.report(error)
        tell(waiting=True)
        sys.stdin.readline()
        if self._awaits_interrupt:  # one that came while an object was freed is delivered again, a bit later
            time.sleep(self._patience)

    def report(self, error: BaseException) -> None:
        """Report an error that the program has caught, and forget it with all that it refers to."""
        if isinstance(error, KeyboardInterrupt):
            self._awaits_interrupt = False
        names = [one.__name__ for one in type(error).__mro__]
        tell(act=self._act, error=names, text=str(error)[:500], trace=traceback.format_exc()[-4000:])
        traceback.clear_frames(error.__traceback__)

    def _perform(self, act: int) -> None:
        if self.case.acts[act].partition(":")[0] in ENDS:
            self.acts.source.troubles.disarm()  # an error would end the program otherwise than the act
        faults = [(number, fault) for number, fault in enumerate(self.case.faults) if fault.act == act]
        for number, fault in faults:
            if fault.kind in TROUBLES:
                self.acts.source.troubles.arm(number)
        self._told = {fault.at for _, fault in faults if fault.kind in OUTSIDE}
        tell(act=act, begins=self.case.acts[act])
        self._stepped(0)
        with ExitStack() as struck:
            for number, fault in faults:
                if fault.kind in SERVER:
                    struck.callback(spoil, self.acts.source.server, "", 0)
                    spoil(self.acts.source.server, fault.kind, fault.at)
                elif fault.kind == LINE:
                    struck.enter_context(interrupted_at(fault.at, partial(self._say_line, number)))
                elif fault.kind in LIMITS or fault.kind in CALLS:
                    # The loader's workers keep the limit that they were started under.
                    struck.callback(self.acts.renew)
                    struck.enter_context(failing(fault) if fault.kind in CALLS else limited(fault))
            self.acts.perform(self.case.acts[act])

    def _say_line(self, number: int) -> None:
        self._awaits_interrupt = True
        tell(line=number)

    def _stepped(self, steps: int) -> None:
        if steps in self._told:
            self._told.discard(steps)
            tell(act=self._act, step=steps)


_TRACED = ("/fetch/", "/system/", "/staging", "/sources/readers/", "/epoch/epoch.py", "epochs.py")
"""The modules that open and close what a loader needs."""


@contextmanager
def interrupted_at(line: int, say: Callable[[], object]) -> Iterator[None]:
    """Interrupt this thread before the given line of those that it runs in `_TRACED` within the block."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if event == "call":
            path = frame.f_code.co_filename
            return trace if "/gpuloader/" in path and any(part in path for part in _TRACED) else None
        if event == "line":
            left -= 1
            if not left:
                say()
                os.kill(os.getpid(), signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def limited(fault: Fault) -> Iterator[None]:
    """Limit what the system gives this process to little more than it has."""
    what, least = {
        "memory": (resource.RLIMIT_AS, lambda: read_status("VmSize") + (fault.at << 20)),
        "descriptors": (resource.RLIMIT_NOFILE, lambda: max(open_descriptors()) + 1 + fault.at),
        "processes": (resource.RLIMIT_NPROC, lambda: count_tasks() + fault.at),
        "file size": (resource.RLIMIT_FSIZE, lambda: fault.at),
    }[fault.kind]
    before = resource.getrlimit(what)
    resource.setrlimit(what, (least(), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def read_status(name: str) -> int:
    """Return an entry of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def open_descriptors() -> dict[int, str]:
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # that of the listing itself
            continue
    return found


def count_tasks() -> int:
    """Return how many threads this user has in all processes."""
    tasks = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                tasks += len(os.listdir(entry / "task"))
        except OSError:
            continue
    return tasks


def residue(descriptors: dict[int, str], threads: set[threading.Thread]) -> dict[str, Any]:
    gc.collect()
    left: dict[str, Any] = {}
    if found := [
        one.name
        for one in threading.enumerate()
        if one not in threads and not one.name.startswith(("zarr", "asyncio"))  # Zarr's own, which stay
    ]:
        left["threads"] = found
    if found := [pid for pid in descendants(os.getpid()) if not is_tracker(pid)]:
        left["processes"] = found
    now = open_descriptors()
    if len(now) > len(descriptors):
        left["descriptors"] = [what for number, what in now.items() if descriptors.get(number) != what]
    maps = Path("/proc/self/maps").read_text().splitlines()
    if found := [line.split(maxsplit=5)[-1] for line in maps if "memfd:gpuloader-" in line]:
        left["mappings"] = found
    return left


def wait_for_residue(
    descriptors: dict[int, str], threads: set[threading.Thread], patience: float
) -> dict[str, Any]:
    """Return what is left of the loaders after `patience` seconds at most, by kind."""
    deadline = time.monotonic() + patience
    while (left := residue(descriptors, threads)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def main(case: Case, folder: str, patience: float) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes background jobs ignore it
    logging.getLogger("gpuloader").setLevel(logging.ERROR)  # pictures that are left out are expected
    # No case needs so much: a defect must not take the memory of the machine.
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE, resource.RLIM_INFINITY))
    defects.install(case.defect)
    if case.in_processes or case.has_children:
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # it stays, with a descriptor
    if case.served:
        from fsspec.asyn import get_loop

        get_loop()  # it stays, with a thread and descriptors
    if case.source == "zarr":
        import zarr

        zarr.zeros(1)[0]  # its event loop stays, with descriptors
    if output_of(case) == "torch" or (case.face and find_spec("torch")):
        importlib.import_module("torch")
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    program = Program(case, folder, patience)
    if any(fault.kind in LIMITS or fault.kind in CALLS for fault in case.faults):
        for name in _LATE:
            importlib.import_module(name)
    memory = read_status("VmRSS")
    caught: BaseException | None = None
    while True:
        try:
            if caught is not None:
                error, caught = caught, None
                program.report(error)
                del error  # its traceback holds all that it passed through
            program.run()
            break
        except KeyboardInterrupt as error:
            if not case.catches:
                raise
            caught = error
    program.acts.end()
    del program
    grown = read_status("VmHWM") - memory
    tell(done=True, left=wait_for_residue(descriptors, threads, patience), grown=grown)


if __name__ == "__main__":
    main(Case.of_json(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
