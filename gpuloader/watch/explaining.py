"""What limits a loop over a loader, by how much, and which parameter to change: `explain`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuloader.watch.advising import Configuration, advise_on_input
from gpuloader.watch.pace import SURE, Pace
from gpuloader.watch.stats import LoaderStats

FEWEST_STEPS = 5
INPUT_SHARE = 0.1
COPY_SHARE = 0.9
TRANSFER_SHARE = 0.3
STARTUP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Explanation:
    """What limits a loop, and what to change; pass it to ``print``, or to the ``print`` of ``rich``.

    Attributes
    ----------
    bound : str
        The part that limits the loop: 'input', 'copy', 'handing over' or 'compute'; 'unknown' after too few
        steps.
    share : float
        The fraction of the loop's time that this part takes, 0 to 1.
    summary : str
        The bound in a sentence, with its numbers.
    parts : dict of str to float
        Seconds per step: wait, transfer and compute make up the loop; fetch, stage and copy may overlap it.
    notes : tuple of str
        Further facts: how much faster the other parts could go, and what 'auto' has chosen.
    advice : tuple of str
        The parameters to change and why, the most promising first; empty if no change would help.
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


def explain(stats: LoaderStats, configuration: Configuration) -> Explanation:
    """Explain what limits the loop that these statistics describe.

    The bound is the first of these that applies. 'copy': the copy stream is busy nine tenths of the time.
    'input': the loop waits for a tenth of its time. 'handing over': delivering batches takes three tenths,
    because they are too small. 'compute': none of these.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> print(explain(DataLoader([1], places="cpu").stats(), Configuration("samples", 0, "process", 2)))
    0 steps so far; an explanation needs at least 5.
    """
    tuned = (configuration.tuned,) if configuration.tuned else ()
    if configuration.pace is not None:
        tuned = (*tuned, describe_pace(configuration.pace))
    if stats.steps < FEWEST_STEPS or stats.seconds <= stats.startup:
        steps = "1 step" if stats.steps == 1 else f"{stats.steps} steps"
        told = f"{steps} so far; an explanation needs at least {FEWEST_STEPS}."
        return Explanation("unknown", 0.0, told, notes=tuned)
    parts = {
        name: getattr(stats, name) / stats.steps
        for name in ("wait", "transfer", "compute", "fetch", "stage", "copy")
    }
    loop = parts["wait"] + parts["transfer"] + parts["compute"]
    copying = parts["copy"] / configuration.places
    if copying >= COPY_SHARE * loop:
        found = _explain_copy(stats, copying, loop)
    elif parts["wait"] >= INPUT_SHARE * loop:
        found = _explain_input(configuration, parts, loop)
    elif parts["transfer"] >= TRANSFER_SHARE * loop:
        found = _explain_transfer(stats, configuration, parts, loop)
    else:
        found = _explain_compute(configuration, parts, copying / loop, loop)
    bound, share, summary, notes, advice = found
    startup = _startup_advice(stats, configuration)
    return Explanation(bound, share, summary, parts, (*notes, *tuned), (*advice, *startup))


Found = tuple[str, float, str, list[str], list[str]]


def _explain_copy(stats: LoaderStats, copying: float, loop: float) -> Found:
    share = min(copying / loop, 1.0)
    rate = stats.nbytes / stats.copy / 1e9
    return (
        "copy",
        share,
        f"Bound by copying: copies take {_time(copying)} of each {_time(loop)} step ({share:.0%}), at "
        f"{rate:.1f} GB/s.",
        [],
        [
            "transforms=[Normalize(...)]: copy fields in a small dtype such as uint8 and convert them on the "
            "device, so that fewer bytes are copied",
            "cache='device': copies the data only once, if it fits in the device's memory",
        ],
    )


def _explain_input(configuration: Configuration, parts: dict[str, float], loop: float) -> Found:
    rest = parts["transfer"] + parts["compute"]
    share = parts["wait"] / loop
    faster = f" Faster input could make steps up to {loop / rest:.1f} times as fast." if rest else ""
    summary = (
        f"Bound by input: your loop waits for data {_time(parts['wait'])} of each {_time(loop)} step "
        f"({share:.0%}).{faster}"
    )
    return (
        "input",
        share,
        summary,
        _input_notes(configuration, parts),
        advise_on_input(configuration, parts, loop, rest),
    )


def _input_notes(configuration: Configuration, parts: dict[str, float]) -> list[str]:
    work = parts["fetch"] + parts["stage"]
    who = (
        f"{configuration.workers} {_name_workers(configuration)}"
        if configuration.workers
        else "a reader thread"
        if configuration.overlaps
        else "your loop's own thread"
    )
    return [f"Loading one step takes {_time(work)} of work, done by {who}."]


def _name_workers(configuration: Configuration) -> str:
    if configuration.reads in ("reader", "batches"):
        return "reader thread"
    names = {"thread": ("thread", "threads"), "process": ("process", "processes")}
    return f"worker {names[configuration.worker_type][configuration.workers > 1]}"


def _explain_transfer(
    stats: LoaderStats, configuration: Configuration, parts: dict[str, float], loop: float
) -> Found:
    share = parts["transfer"] / loop
    size = stats.nbytes / max(stats.batches, 1)
    advice = ["increase batch_size, if the model allows: delivery costs about the same for larger batches"]
    if configuration.forced:
        advice.append(
            f"{_switch(configuration)}: in steps this short, a reader thread costs more than it saves"
        )
    return (
        "handing over",
        share,
        f"Bound by handing over: delivering batches of {_bytes(size)} takes {_time(parts['transfer'])} of "
        f"each {_time(loop)} step ({share:.0%}).",
        [],
        advice,
    )


def _explain_compute(
    configuration: Configuration, parts: dict[str, float], copying: float, loop: float
) -> Found:
    share = parts["compute"] / loop
    ahead = configuration.workers or configuration.pace
    notes = []
    work = (parts["fetch"] + parts["stage"]) / max(configuration.workers, 1)
    if configuration.overlaps and work:
        notes.append(f"The input could supply steps {loop / work:.1f} times as fast.")
    if copying:
        overlap = ", in parallel with your code" if configuration.overlaps else ""
        notes.append(f"Copies take {copying:.0%} of the time{overlap}.")
    return (
        "compute",
        share,
        f"Bound by compute: your code takes {_time(parts['compute'])} of each {_time(loop)} step "
        f"({share:.0%}); the loader keeps up.",
        notes,
        [] if ahead or copying < INPUT_SHARE else [_copy_ahead(configuration)],
    )


def _copy_ahead(configuration: Configuration) -> str:
    """Return advice for a loop that issues a copy only when it asks for the batch."""
    return (
        f"{_switch(configuration)}: copies batches ahead; without it, a step that waits for the device, for "
        "example to read a loss, also waits for the copy of its batch"
    )


def _switch(configuration: Configuration) -> str:
    """Return the option with which the loader itself chooses how to read ahead."""
    if configuration.reads == "batches":
        return "prefetch=2"
    return f"use_{'double_buffer' if configuration.reads == 'reader' else 'buffer_reader'}=True"


def describe_pace(pace: Pace) -> str:
    """Tell how batches are read ahead without workers, and why.

    >>> describe_pace(Pace(read=12_000, step=30_000))
    "Batches are read in your loop's thread: reading takes 12 µs and your step 30 µs, too little to hide."
    >>> print(describe_pace(Pace(read=1_000_000, step=1_000_000)).partition(", and ")[2])
    a thread hid nothing of it, as with Python code on both sides.
    """
    if pace.fixed:
        return "Batches are read ahead in a thread, because the option is 'thread'."
    if not (pace.read and pace.step):
        return "Batches are read ahead in a thread where that pays; nothing has been measured yet."
    told = f"reading takes {_time(pace.read * 1e-9)} and your step {_time(pace.step * 1e-9)}"
    if pace.threaded:
        return f"Batches are read ahead in a thread: {told}, and the shorter hides behind the longer."
    why = "too little to hide"
    if min(pace.read, pace.step) >= SURE:
        why = "and a thread hid nothing of it, as with Python code on both sides"
    return f"Batches are read in your loop's thread: {told}, {why}."


def _startup_advice(stats: LoaderStats, configuration: Configuration) -> list[str]:
    if stats.startup < STARTUP_SHARE * stats.seconds:
        return []
    share = stats.startup / stats.seconds
    told = f"starting epochs takes {share:.0%} of the time"
    if (
        configuration.workers
        and configuration.worker_type == "process"
        and not configuration.persistent
        and configuration.reads != "reader"
    ):
        return [f"persistent_workers=True: {told}, and this keeps the worker processes between epochs"]
    return [f"longer epochs, or a faster first batch: {told}"]


def _time(seconds: float) -> str:
    """Format a time in a suitable unit.

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
        where = "" if name in _COLOURS else "may overlap the loop"
        table.add_row(name, _time(seconds), bar, Text(where, style="dim"))
    texts = [Text(explanation.summary, style="bold"), *(Text(note) for note in explanation.notes)]
    advice = [Text("→ ", style="cyan") + Text(one) for one in explanation.advice]
    return Group(texts[0], table, *texts[1:], *advice) if parts else Group(*texts, *advice)
