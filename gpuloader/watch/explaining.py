"""In words: what bounds a loop over a loader, by how much, and which knob to turn."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gpuloader.watch.stats import LoaderStats

FEWEST_STEPS = 5
INPUT_SHARE = 0.1
COPY_SHARE = 0.9
TRANSFER_SHARE = 0.3
STARTUP_SHARE = 0.2
BUSY_SHARE = 0.7
SHORT = 0.5e-3
"""Seconds of a step below which handing a batch from thread to thread counts."""
TOO_SHORT = 0.2e-3
"""Seconds of a step below which it costs more than any worker or thread hides."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What matters of a loader's options when its times are explained.

    Attributes
    ----------
    reads : str
        'samples' of a dataset, 'arrays' taken whole, 'items' of an iterable dataset, or 'reader'.
    workers : int
        Beside the consumer: threads or processes; the reader's thread counts as one.
    worker_type : str
        'process' or 'thread'.
    cores : int
        That this process may use.
    places : int
        Batches a step.
    persistent : bool
        Whether worker processes stay between epochs.
    tuned : str
        What was chosen for options that were left to the loader, in a sentence; empty where none were.
    most : int
        Workers that the loader may choose.
    since : LoaderStats or None
        What had happened when that was chosen: the search itself is not explained.
    """

    reads: str
    workers: int
    worker_type: str
    cores: int
    places: int = 1
    persistent: bool = False
    tuned: str = ""
    most: int = 0
    since: LoaderStats | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What bounds a loop, and what can be done; ``print`` it, or give it to ``rich``.

    Attributes
    ----------
    bound : str
        'input', 'copy', 'handing over', 'compute', or 'unknown' after too few steps.
    share : float
        What part of the loop's time the bound takes, 0 to 1.
    summary : str
        The bound in a sentence, with its numbers.
    parts : dict of str to float
        Seconds a step: of the loop wait, transfer and compute; beside it fetch, stage and copy.
    notes : tuple of str
        What else is worth knowing: how far the rest could go, what was tuned.
    advice : tuple of str
        Which knob to turn, the most promising first; empty where none is worth it.
    """

    bound: str
    share: float
    summary: str
    parts: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.summary, *self.notes, *(f"→ {one}" for one in self.advice)]
        return "\n".join(lines)

    def __rich__(self) -> Any:
        return _render(self)


def explain(stats: LoaderStats, setup: Setup) -> Explanation:
    """Return what bounds the loop that gave these statistics.

    A copy stream that is busy nine tenths of the time bounds a step by copying; otherwise waiting for a
    tenth of the loop's time means that the input does; handing over, for three tenths, that batches are
    too small; otherwise it is the consumer.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> print(explain(DataLoader([1], places="cpu").stats(), Setup("samples", 0, "process", 2)))
    0 steps so far: too few to explain, at least 5 are needed.
    """
    tuned = (setup.tuned,) if setup.tuned else ()
    if stats.steps < FEWEST_STEPS or stats.seconds <= stats.startup:
        told = f"{stats.steps} steps so far: too few to explain, at least {FEWEST_STEPS} are needed."
        return Explanation("unknown", 0.0, told, notes=tuned)
    parts = {
        name: getattr(stats, name) / stats.steps
        for name in ("wait", "transfer", "compute", "fetch", "stage", "copy")
    }
    loop = parts["wait"] + parts["transfer"] + parts["compute"]
    copying = parts["copy"] / setup.places
    if copying >= COPY_SHARE * loop:
        found = _explain_copy(stats, copying, loop)
    elif parts["wait"] >= INPUT_SHARE * loop:
        found = _explain_input(setup, parts, loop)
    elif parts["transfer"] >= TRANSFER_SHARE * loop:
        found = _explain_transfer(stats, setup, parts, loop)
    else:
        found = _explain_compute(setup, parts, copying / loop, loop)
    bound, share, summary, notes, advice = found
    startup = _startup_advice(stats, setup)
    return Explanation(bound, share, summary, parts, (*notes, *tuned), (*advice, *startup))


Found = tuple[str, float, str, list[str], list[str]]


def _explain_copy(stats: LoaderStats, copying: float, loop: float) -> Found:
    share = min(copying / loop, 1.0)
    rate = stats.nbytes / stats.copy / 1e9
    return (
        "copy",
        share,
        f"Bound by copying: copies take {_time(copying)} of a step's {_time(loop)} ({share:.0%}), at "
        f"{rate:.1f} GB/s.",
        [],
        [
            "send fewer bytes: keep fields in their small dtype (uint8) and convert them on the device with "
            "transforms=[Normalize(...)]",
            "cache='device' copies the data once, if it fits there",
        ],
    )


def _explain_input(setup: Setup, parts: dict[str, float], loop: float) -> Found:
    rest = parts["transfer"] + parts["compute"]
    share = parts["wait"] / loop
    faster = f"an input that keeps up would make steps {loop / rest:.1f} times as fast" if rest else ""
    summary = (
        f"Bound by input: the consumer waits {_time(parts['wait'])} of a step's {_time(loop)} ({share:.0%}); "
        f"{faster}."
    )
    return "input", share, summary, _input_notes(setup, parts), _input_advice(setup, parts, loop, rest)


def _input_notes(setup: Setup, parts: dict[str, float]) -> list[str]:
    work = parts["fetch"] + parts["stage"]
    who = f"{setup.workers} {_name_workers(setup)}" if setup.workers else "the consumer itself"
    return [f"A step's input takes {_time(work)} of work, done by {who}."]


def _name_workers(setup: Setup) -> str:
    if setup.reads == "reader":
        return "reader thread"
    names = {"thread": ("thread", "threads"), "process": ("process", "processes")}
    return f"worker {names[setup.worker_type][setup.workers > 1]}"


def _input_advice(setup: Setup, parts: dict[str, float], loop: float, rest: float) -> list[str]:
    work = parts["fetch"] + parts["stage"]
    if setup.reads == "reader":
        return _reader_advice(setup, parts, loop)
    if setup.tuned and setup.since is None:
        return []  # it is being looked for
    if setup.reads == "arrays":
        return [
            "cache='device' keeps the arrays on the GPU; elsewhere a larger batch_size costs less a sample"
        ]
    needed = math.ceil(work / rest) if rest * setup.cores > work else setup.cores
    if not setup.workers:
        if loop < TOO_SHORT:
            return ["a larger batch_size: in steps this short workers cost more than they hide"]
        return [f"num_workers={max(min(needed, setup.cores), 1)}, or num_workers='auto'", "cache='host'"]
    threads = setup.worker_type == "thread"
    python = ["worker_type='process', if Python code makes its samples: threads take turns at it"] * threads
    busy = work / (setup.workers * loop)
    if busy < BUSY_SHARE:
        told = f"the workers are busy only {busy:.0%} of the time: "
        if loop < TOO_SHORT:
            return [f"{told}in steps this short handing over costs more than it hides: num_workers=0"]
        uneven = f"{told}their batches come unevenly; a larger prefetch_factor lets them run further ahead"
        return [uneven, *python]
    if setup.tuned and setup.workers >= setup.most:
        more = f"'auto' stops at {setup.most} workers: num_workers={2 * setup.most} may gain more"
    elif setup.tuned:
        more = "more workers were tried and gained nothing: make a sample cheaper, e.g. cache='host'"
    elif setup.workers < setup.cores:
        more = f"num_workers={min(needed, setup.cores)} (now {setup.workers}), or num_workers='auto'"
    else:
        waits = "num_workers='auto'" if threads else "worker_type='thread' with more workers"
        return [
            f"all {setup.cores} cores have a worker: make a sample cheaper, e.g. cache='host', or "
            "transforms= for what the device can do",
            f"{waits}, if its samples wait for a disk or a network",
            *python,
        ]
    return [more, *python]


def _reader_advice(setup: Setup, parts: dict[str, float], loop: float) -> list[str]:
    if not setup.workers and loop < TOO_SHORT:
        return ["a larger batch_size: in steps this short a thread costs more than it hides"]
    if not setup.workers:
        return ["use_double_buffer=True reads in a thread beside the step"]
    busy = (parts["fetch"] + parts["stage"]) / loop
    if busy < BUSY_SHARE:
        told = f"the reader's thread is busy only {busy:.0%} of the time: "
        if loop < SHORT:
            return [
                f"{told}in steps this short handing over costs more than it hides: use_double_buffer=False"
            ]
        return [f"{told}its batches come unevenly: a larger capacity lets it run further ahead"]
    advice = ["reader.xmap_readers maps samples in several threads; use_multiprocess=True reads in a process"]
    if parts["stage"] > parts["fetch"]:
        advice.insert(0, "set_sample_generator writes samples in place, where ready batches are copied")
    return advice


def _explain_transfer(stats: LoaderStats, setup: Setup, parts: dict[str, float], loop: float) -> Found:
    share = parts["transfer"] / loop
    size = stats.nbytes / max(stats.batches, 1)
    advice = ["a larger batch_size, if the model allows"]
    if setup.reads == "reader" and setup.workers:
        advice.append("use_double_buffer=False: in steps this short the hand-over between threads costs more")
    return (
        "handing over",
        share,
        f"Bound by handing over: {_time(parts['transfer'])} of a step's {_time(loop)} ({share:.0%}) go into "
        f"batches of {_bytes(size)}.",
        [],
        advice,
    )


def _explain_compute(setup: Setup, parts: dict[str, float], copying: float, loop: float) -> Found:
    share = parts["compute"] / loop
    notes = []
    work = (parts["fetch"] + parts["stage"]) / max(setup.workers, 1)
    if setup.workers and work:
        notes.append(f"The input could feed steps {loop / work:.1f} times as fast.")
    if copying:
        beside = ", beside it" if setup.workers else ""
        notes.append(f"Copies take {copying:.0%} of the time{beside}.")
    return (
        "compute",
        share,
        f"Bound by compute: the consumer is busy {_time(parts['compute'])} of a step's {_time(loop)} "
        f"({share:.0%}); the loader keeps up.",
        notes,
        [] if setup.workers or copying < INPUT_SHARE else [_copy_ahead(setup)],
    )


def _copy_ahead(setup: Setup) -> str:
    """Return what helps a consumer that fetches by itself: its next copy is issued when it asks for it."""
    ahead = {
        "reader": "use_double_buffer=True issues copies ahead",
        "arrays": "cache='device' keeps the arrays on the GPU",
    }
    knob = ahead.get(setup.reads, "num_workers=1 issues copies ahead")
    return f"{knob}: without it a step that waits for the device, as for a loss, waits for its copy as well"


def _startup_advice(stats: LoaderStats, setup: Setup) -> list[str]:
    if stats.startup < STARTUP_SHARE * stats.seconds:
        return []
    share = stats.startup / stats.seconds
    told = f"epochs take {share:.0%} of their time to begin"
    if setup.workers and setup.worker_type == "process" and not setup.persistent and setup.reads != "reader":
        return [f"{told}: persistent_workers=True keeps the processes between epochs"]
    return [f"{told}: make them longer, or the first batch faster"]


def _time(seconds: float) -> str:
    """Return a time as one would say it.

    >>> _time(0.0000042), _time(0.0313), _time(2.5)
    ('4.2 µs', '31 ms', '2.5 s')
    """
    units = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
    unit = next((unit for unit, size in units.items() if seconds >= size), "µs")
    value = seconds / units[unit]
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"


def _bytes(count: float) -> str:
    for unit, size in (("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


_COLOURS = {"wait": "yellow", "transfer": "magenta", "compute": "green"}


def _render(explanation: Explanation, width: int = 40) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    parts = explanation.parts
    longest = max(parts.values(), default=0.0)
    for name, seconds in parts.items():
        if not seconds and name not in _COLOURS:
            continue
        bar = Text("█" * max(round(width * seconds / longest), 1 if seconds else 0) if longest else "")
        bar.stylize(_COLOURS.get(name, "blue"))
        where = "" if name in _COLOURS else "beside the loop"
        table.add_row(name, _time(seconds), bar, Text(where, style="dim"))
    texts = [Text(explanation.summary, style="bold"), *(Text(note) for note in explanation.notes)]
    advice = [Text("→ ", style="cyan") + Text(one) for one in explanation.advice]
    return Group(texts[0], table, *texts[1:], *advice) if parts else Group(*texts, *advice)
