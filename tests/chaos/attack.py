"""One attack: run a case's program, strike it from outside, and judge what a user would have seen."""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.acts import EXIT_CODE
from tests.chaos.case import GROUP, LIMITS, OUTSIDE, Case, Fault
from tests.processes import (
    ask_for_stacks,
    command,
    descendants,
    is_running,
    is_stopped,
    is_tracker,
    marked,
    send,
)

ROOT = Path(__file__).parents[2]
DEADLINE = 180.0
"""Seconds that a program may take, on a busy machine too; none takes more than a few."""
PATIENCE = 60.0
"""Seconds that processes may outlive the program."""
MEMORY = 256 << 20
"""Bytes that a program may grow by. Its samples are less than 1 MB."""

_SIGNALS = {
    "interrupt": signal.SIGINT,
    "terminate": signal.SIGTERM,
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
}
_users = itertools.count(0x60000000 + os.getpid() % 0x10000 * 0x1000)
_MARK = "GPULOADER_CHAOS"


@dataclass(frozen=True)
class Verdict:
    """What became of a case.

    Attributes
    ----------
    case : Case
        The case.
    findings : tuple of str
        What should not have happened; empty if all is well.
    details : str
        What the program wrote.
    seconds : float
        How long it ran.
    """

    case: Case
    findings: tuple[str, ...]
    details: str = ""
    seconds: float = 0.0


def attack(case: Case, deadline: float = DEADLINE, patience: float = PATIENCE) -> Verdict:
    """Run a case and judge it: it has `deadline` seconds, and what it leaves has `patience` seconds to go."""
    with tempfile.TemporaryDirectory(prefix="gpuloader-chaos-") as folder:
        os.chmod(folder, 0o755)
        run = _Run(case, Path(folder), patience)
        try:
            return run.judge(deadline)
        finally:
            run.end()


class _Run:
    """One run of a program, with its files, its marked processes and, for root, a user of its own.

    A user of its own makes the limit of processes exact, and shows who has left files in folders that all
    users share.
    """

    def __init__(self, case: Case, folder: Path, patience: float) -> None:
        self.case = case
        self.patience = patience
        self.mark = f"{_MARK}={uuid.uuid4()}"
        self.user = next(_users) if os.geteuid() == 0 and shutil.which("setpriv") else None
        self.files, self.temporary = folder / "files", folder / "temporary"
        for one in (self.files, self.temporary):
            one.mkdir()
            if self.user is not None:
                os.chown(one, self.user, self.user)
        self.fifo = self.files / "stalled"
        os.mkfifo(self.fifo, 0o644)
        if self.user is not None:
            os.chown(self.fifo, self.user, self.user)
        self.errors = (folder / "errors").open("w+b")
        self.pending = [fault for fault in case.faults if fault.kind in OUTSIDE]
        self.stalls = [fault for fault in case.faults if fault.kind == "stall"]
        self.told: list[dict[str, Any]] = []
        self.timers: list[threading.Timer] = []
        self.sent: list[Fault] = []
        self.pipes: list[int] = []
        self.begun = time.monotonic()
        name, _, value = self.mark.partition("=")
        command = [
            sys.executable,
            "-m",
            "tests.chaos.subject",
            case.to_json(),
            str(self.files),
            str(patience),
        ]
        self.program = subprocess.Popen(
            [*_become(self.user), *command],
            cwd=ROOT,
            env=_environment() | {name: value, "TMPDIR": str(self.temporary), "HOME": str(self.files)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        assert self.program.stdout is not None
        for line in self.program.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def judge(self, deadline: float) -> Verdict:
        """Follow the program to its end, striking where the case says, and return the verdict."""
        hangs = not self._follow(self.begun + deadline)
        seconds = time.monotonic() - self.begun
        findings: list[str] = []
        if hangs:
            ask_for_stacks([self.program.pid, *descendants(self.program.pid)])
            time.sleep(1.0)
            findings.append(f"hang: no end after {deadline:.0f} s")
            self._kill_all()
        else:
            findings += self._left_processes()
        self.program.wait()
        text = self._read_errors()
        if not hangs:
            findings += judge_errors(self.case, self.told)
            findings += judge_end(self.case, self.program.returncode, text, self.told, self.sent)
            findings += self._left_files()
        return Verdict(self.case, tuple(findings), self._describe(text), seconds)

    def _follow(self, deadline: float) -> bool:
        """Handle what the program tells; return False if it does not end in time."""
        while True:
            has_ended = self.program.poll() is not None  # asked first, because its last words come before
            try:
                line = self.lines.get(timeout=0.5)
            except queue.Empty:
                if has_ended:  # though a process that it has left may hold the pipe open
                    return True
                if is_stopped(self.program.pid):
                    deadline += 0.5  # by somebody else: our own timer wakes it again
                if time.monotonic() > deadline:
                    return False
                continue
            if not line:
                break
            try:
                facts = json.loads(line)
            except ValueError:
                self.told.append({"garbled": line.decode(errors="replace")})
                continue
            self.told.append(facts)
            self._strike(facts)
        try:
            self.program.wait(max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _strike(self, facts: dict[str, Any]) -> None:
        """Send the signals that are due at this point of the program."""
        act = facts.get("act")
        if "begins" in facts:
            for fault in self.stalls:
                if fault.act == act:
                    self._later(fault.delay, self._feed)
        waits = "waiting" in facts
        due = [
            fault
            for fault in self.pending
            if waits or (act is not None and (fault.act, fault.at) <= (act, facts.get("step", -1)))
        ]
        for fault in due:
            self.pending.remove(fault)
            if fault.delay and not waits:
                self._later(fault.delay, lambda fault=fault: self._send(fault))
            else:
                self._send(fault)
        if waits:
            for timer in self.timers:
                timer.join()
            assert self.program.stdin is not None
            with suppress(OSError):  # a signal has ended it
                self.program.stdin.write(b"\n")
                self.program.stdin.flush()

    def _later(self, seconds: float, action: Any) -> None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        self.timers.append(timer)
        timer.start()

    def _feed(self) -> None:
        """Give the sample that waits at the pipe its byte."""
        pipe = os.open(self.fifo, os.O_RDWR)  # which never waits
        os.write(pipe, b"x")
        self.pipes.append(pipe)  # the byte lasts as long as the pipe is open

    def _send(self, fault: Fault) -> None:
        number = _SIGNALS[fault.kind]
        if self.program.poll() is not None:
            return
        self.sent.append(fault)
        if fault.who == GROUP:
            with suppress(ProcessLookupError):
                os.killpg(self.program.pid, number)
            return
        pid = self.program.pid
        if fault.who >= 0:
            below = [pid for pid in descendants(pid) if not is_tracker(pid) and is_running(pid)]
            if not below:
                return
            pid = below[fault.who % len(below)]
        if send(pid, number) and fault.kind == "stop":
            time.sleep(0.2)
            send(pid, signal.SIGCONT)

    def _left_processes(self) -> list[str]:
        deadline = time.monotonic() + self.patience
        while left := marked(self.mark):
            if time.monotonic() > deadline:
                ask_for_stacks(left)
                time.sleep(1.0)
                found = [f"process {pid} outlives the program: {command(pid)}" for pid in left]
                self._kill_all()
                return found
            time.sleep(0.02)
        return []

    def _left_files(self) -> list[str]:
        left = [str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*")]
        if self.user is not None:
            for shared in (Path("/dev/shm"), Path("/tmp")):
                for path in shared.iterdir() if shared.is_dir() else ():
                    try:
                        if path.lstat().st_uid == self.user:
                            left.append(str(path))
                    except OSError:
                        continue
        return [f"temporary files are left: {sorted(left)}"] if left else []

    def _read_errors(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def _describe(self, text: str) -> str:
        told = "\n".join(json.dumps(facts) for facts in self.told if "step" not in facts)
        return f"exit code {self.program.returncode}\n{told}\n--- standard error ---\n{text[-20000:]}"

    def _kill_all(self) -> None:
        for pid in {*marked(self.mark), *([self.program.pid] if self.program.poll() is None else [])}:
            send(pid, signal.SIGKILL)

    def end(self) -> None:
        """Leave nothing behind."""
        self._kill_all()
        self.program.wait()
        for timer in self.timers:
            timer.cancel()
            timer.join()
        for pipe in self.pipes:
            os.close(pipe)
        self.reading.join(10)
        for stream in (self.program.stdin, self.program.stdout, self.errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _become(user: int | None) -> list[str]:
    """Return the words before a command that run it as a user without rights, except to read any file."""
    if user is None:
        return []
    rights = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *rights]


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return dict(os.environ) | {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",  # otherwise importing NumPy starts threads, which a limit refuses
        "CUDA_VISIBLE_DEVICES": "",
    }


def judge_errors(case: Case, told: list[dict[str, Any]]) -> list[str]:
    """Return the errors that no fault explains, and those that exceed one for each fault."""
    found, explained = [], 0
    for facts in told:
        if "garbled" in facts:
            found.append(f"the program wrote {facts['garbled']!r}")
        if "error" not in facts:
            continue
        if set(facts["error"]) & expected_errors(case, facts["act"]):
            explained += 1
        else:
            act = case.acts[facts["act"]]
            found.append(f"{facts['error'][0]} in act {facts['act']} ({act}): {facts['text']}")
    if explained > len(case.faults):
        found.append(f"{explained} errors for {len(case.faults)} faults")
    return found


def expected_errors(case: Case, act: int) -> set[str]:
    """Return the names of the classes of errors that a program may get in an act."""
    names: set[str] = set()
    for fault in case.faults:
        if fault.act > act:
            continue
        if fault.kind == "interrupt" and fault.who < 0:
            names |= {"KeyboardInterrupt"}
        elif fault.kind in ("kill", "terminate") and fault.who >= 0:
            names |= {"LoaderError"}
        elif fault.kind in LIMITS and fault.act == act:
            names |= {"LoaderError", *(["MemoryError"] if fault.kind == "memory" else [])}
        elif fault.kind in ("raise", "raise unpicklable", "leave", "exit", "crash"):
            names |= {"LoaderError"}
            if case.is_reader or case.workers == 0:  # a reader's own errors reach the program as they are
                names |= {"Trouble", "Unpicklable", "SystemExit"}
    return names


def judge_end(case: Case, code: int, text: str, told: list[dict[str, Any]], sent: list[Fault]) -> list[str]:
    """Return what is wrong with how the program ended: its code, its words, and what it found left."""
    fatal = next((fault for fault in sent if fault.ends_program), None)
    tracebacks = text.count("Traceback (most recent call last)")
    last = text.rstrip().rpartition("\n")[2]
    expected = EXIT_CODE if case.ends else 0
    if fatal is not None and not (fatal.kind == "interrupt" and case.catches):
        expected = -_SIGNALS[fatal.kind]
    is_loud = expected == -signal.SIGINT or case.acts[-1].startswith("unhandled")
    if case.acts[-1].startswith("unhandled") and expected == EXIT_CODE:
        expected = 1
    found = []
    if code != expected:
        found.append(f"exit code {code}, expected {expected}")
    if is_loud and code == expected:
        word = "KeyboardInterrupt" if expected < 0 else "tests.chaos.acts.Ending"
        if tracebacks != 1 or not last.startswith(word):
            found.append(f"{tracebacks} tracebacks, ending in {last!r}; expected one, ending in {word}")
    elif text.strip():
        found.append(f"the program complains: {last}")
    done = next((facts for facts in told if "done" in facts), None)
    if done is None:
        if expected == 0 and code == 0:
            found.append("the program ended before it was done")
        return found
    found += [f"left behind: {kind} {what}" for kind, what in done["left"].items()]
    if done["grown"] > MEMORY:
        found.append(f"the program has grown by {done['grown'] >> 20} MiB")
    return found
