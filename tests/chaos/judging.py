"""What a user may see of a case's faults, and what not."""

from __future__ import annotations

import re
import signal
from typing import Any

from tests.chaos.acts import EXIT_CODE
from tests.chaos.case import LIMITS, LINE, MAP_STYLE, SERVER, Case, Fault
from tests.chaos.failing import CALLS, HARMLESS
from tests.chaos.server import ATTEMPTS

MEMORY = 256 << 20
"""Bytes that a program may grow by. Its samples are less than 1 MB."""

SIGNALS = {
    LINE: signal.SIGINT,
    "interrupt": signal.SIGINT,
    "terminate": signal.SIGTERM,
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
}


_TRACKER = re.compile(
    r".*resource_tracker: There appear to be \d+ leaked semaphore objects.*\n.*\n"
    r"(.*resource_tracker: '/mp-.*\n.*\n)*"
)
"""What Python's resource tracker says of a semaphore whose process was killed."""

_UNREAD = re.compile(
    r".*RuntimeWarning: coroutine '_runner' was never awaited\n.*\n"
    r"RuntimeWarning: Enable tracemalloc to get the object allocation traceback\n"
)
"""What asyncio says at exit of a read that a daemon thread has just asked fsspec for."""

_REFUSED = re.compile(r"<jemalloc>: .*background thread creation failed.*\n")
"""What Arrow's allocator says if the system refuses it a thread."""


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
        if fault.interrupts:
            names |= {"KeyboardInterrupt"}
        elif fault.kind in ("kill", "terminate") and fault.who >= 0:
            names |= {"LoaderError"}
        elif fault.kind in LIMITS and fault.act == act:
            names |= {"LoaderError", *(["MemoryError"] if fault.kind == "memory" else [])}
        elif fault.kind in CALLS and fault.kind not in HARMLESS and fault.act == act:
            names |= {"LoaderError"}
        elif fault.kind in SERVER and (fault.kind == "whole" or fault.at >= ATTEMPTS):
            names |= {"SourceError", *(["SampleError"] if case.source in MAP_STYLE else [])}
        elif fault.kind in ("raise", "raise unpicklable", "leave", "exit", "crash"):
            names |= {"LoaderError"}
            # Those of a reader, and under PyTorch's face any, reach the program as they are.
            if case.is_reader or case.workers == 0 or case.face:
                names |= {"Trouble", "Unpicklable", "SystemExit"}
    return names


def judge_end(case: Case, code: int, text: str, told: list[dict[str, Any]], sent: list[Fault]) -> list[str]:
    """Return what is wrong with how the program ended: its code, its words, and what it found left."""
    if case.source == "zarr":
        # Zarr's codecs make a lock in each worker. A worker that is killed, or ends because its program does,
        # leaves it to the tracker, which removes it and says so.
        text = _TRACKER.sub("", text)
    if case.served and any(act.startswith("daemon") for act in case.acts):
        text = _UNREAD.sub("", text)
    if any(fault.kind == "processes" for fault in case.faults):
        text = _REFUSED.sub("", text)
    fatal = next((fault for fault in sent if fault.ends_program), None)
    tracebacks = text.count("Traceback (most recent call last)")
    last = text.rstrip().rpartition("\n")[2]
    expected = EXIT_CODE if case.ends else 0
    if fatal is not None and not (fatal.interrupts and case.catches):
        expected = -SIGNALS[fatal.kind]
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
