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
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import processes
from tests.chaos.case import GROUP, OUTSIDE, Case, Fault
from tests.chaos.failing import CALLS, build
from tests.chaos.judging import SIGNALS, judge_end, judge_errors
from tests.chaos.server import serve

ROOT = Path(__file__).parents[2]
DEADLINE = 180.0
"""Seconds that a program may take, on a busy machine too; none takes more than a few."""
PATIENCE = 60.0
"""Seconds that processes may outlive the program."""
_users = itertools.count(0x60000000 + os.getpid() % 0x10000 * 0x1000)
_MARK = "GPULOADER_CHAOS"


@dataclass(frozen=True)
class Verdict:
    """What became of a case."""

    case: Case
    findings: tuple[str, ...]  # what should not have happened; empty if all is well
    details: str = ""  # what the program wrote


def attack(case: Case, patience: float = PATIENCE) -> Verdict:
    """Run a case and judge it: what it leaves behind has `patience` seconds to go."""
    with tempfile.TemporaryDirectory(prefix="gpuloader-chaos-") as folder:
        os.chmod(folder, 0o755)
        files = Path(folder, "files")
        files.mkdir()
        with serve(files) if case.served else nullcontext("") as server:
            if server:
                Path(files, "server").write_text(server)
            run = _Run(case, Path(folder), patience)
            try:
                return run.judge()
            finally:
                run.end()


def become(user: int | None) -> list[str]:
    """Return the words before a command that run it as a user without rights, except to read any file."""
    if user is None:
        return []
    rights = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *rights]


class _Run:
    """One run of a program, with its files, its marked processes and, for root, a user of its own."""

    def __init__(self, case: Case, folder: Path, patience: float) -> None:
        self.case = case
        self.patience = patience
        self.mark = f"{_MARK}={uuid.uuid4()}"
        # It makes the limit of processes exact, and shows who has left files in folders that all users share.
        self.user = next(_users) if os.geteuid() == 0 and shutil.which("setpriv") else None
        self.files, self.temporary = folder / "files", folder / "temporary"
        self.temporary.mkdir()
        self.fifo = self.files / "stalled"
        os.mkfifo(self.fifo, 0o644)
        for one in (self.files, self.temporary, self.fifo) if self.user is not None else ():
            os.chown(one, self.user, self.user)
        self.errors = (folder / "errors").open("w+b")
        self.pending = [fault for fault in case.faults if fault.kind in OUTSIDE]
        self.stalls = [fault for fault in case.faults if fault.kind == "stall"]
        self.told: list[dict[str, Any]] = []
        self.timers: list[threading.Timer] = []
        self.sent: list[Fault] = []
        self.pipes: list[int] = []
        self.begun = time.monotonic()
        name, _, value = self.mark.partition("=")
        environment = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",  # otherwise importing NumPy starts threads, which a limit refuses
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": str(self.temporary),
            "HOME": str(self.files),
            name: value,
        }
        if any(fault.kind in CALLS for fault in case.faults):
            environment |= build(folder)
        arguments = case.to_json(), str(self.files), str(patience)
        self.program = subprocess.Popen(
            [*become(self.user), sys.executable, "-m", "tests.chaos.subject", *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
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

    def judge(self) -> Verdict:
        """Follow the program to its end, striking where the case says, and return the verdict."""
        hangs = not self._follow()
        seconds = time.monotonic() - self.begun
        findings: list[str] = []
        if hangs:
            processes.ask_for_stacks([self.program.pid, *processes.descendants(self.program.pid)])
            time.sleep(1.0)
            findings.append(f"hang: no end after {seconds:.0f} s")
            self._kill_all()
        else:
            findings += self._left_processes()
        self.program.wait()
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        if not hangs:
            findings += judge_errors(self.case, self.told)
            findings += judge_end(self.case, self.program.returncode, text, self.told, self.sent)
            findings += self._left_files()
        told = "\n".join(json.dumps(facts) for facts in self.told if "step" not in facts)
        shown = f"exit code {self.program.returncode}\n{told}\n--- standard error ---\n{text[-20000:]}"
        return Verdict(self.case, tuple(findings), shown)

    def _follow(self) -> bool:
        """Handle what the program tells; return False if it does not end in time."""
        deadline = self.begun + DEADLINE
        while True:
            has_ended = self.program.poll() is not None  # asked first, because its last words come before
            try:
                line = self.lines.get(timeout=0.5)
            except queue.Empty:
                if has_ended:  # though a process that it has left may hold the pipe open
                    return True
                if processes.is_stopped(self.program.pid):
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
            if "deadline" in facts:  # the defect that hangs, does from now on
                deadline = time.monotonic() + facts["deadline"]
            if "line" in facts:
                self.sent.append(self.case.faults[facts["line"]])
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
        number = SIGNALS[fault.kind]
        if self.program.poll() is not None:
            return
        self.sent.append(fault)
        if fault.who == GROUP:
            with suppress(ProcessLookupError):
                os.killpg(self.program.pid, number)
            return
        pid = self.program.pid
        if fault.who >= 0:
            below = filter(processes.is_running, processes.descendants(pid))
            below = [pid for pid in below if not processes.is_tracker(pid)]
            if not below:
                return
            pid = below[fault.who % len(below)]
        if processes.send(pid, number) and fault.kind == "stop":
            time.sleep(0.2)
            processes.send(pid, signal.SIGCONT)

    def _left_processes(self) -> list[str]:
        deadline = time.monotonic() + self.patience
        while left := processes.marked(self.mark):
            if time.monotonic() > deadline:
                processes.ask_for_stacks(left)
                time.sleep(1.0)
                found = [f"process {pid} outlives the program: {processes.command(pid)}" for pid in left]
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

    def _kill_all(self) -> None:
        if self.program.poll() is None:
            self.program.kill()
        for pid in processes.marked(self.mark):
            processes.send(pid, signal.SIGKILL)

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
