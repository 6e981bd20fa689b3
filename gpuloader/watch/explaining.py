"""What limits a loop over a loader, by how much, and which parameter to change: `explain`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gpuloader.system.platforms import has_gil
from gpuloader.watch.meter import Configuration
from gpuloader.watch.read_ahead_policy import SURE, ReadAheadPolicy
from gpuloader.watch.stats import LoaderStats

# When a part of the loop limits it. Shares are fractions of the loop's time; steps are in seconds.

FEWEST_STEPS = 5
INPUT_SHARE = 0.1
COPY_SHARE = 0.9
TRANSFER_SHARE = 0.3
STARTUP_SHARE = 0.2
BUSY_SHARE = 0.7  # workers busy for less than this wait for slots or the loop: more of them gain nothing
SHORT = 0.5e-3  # below this, the time to pass a batch between threads matters
TOO_SHORT = 0.2e-3  # below this, passing batches costs more than any worker or thread saves


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
        return "\n".join([self.summary, *self.notes, *(f"→ {one}" for one in self.advice)])

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        colors = {"wait": "yellow", "transfer": "magenta", "compute": "green"}  # the parts of the loop
        longest = max(self.parts.values(), default=0.0)
        lines = [Text(self.summary, style="bold")]
        for name, seconds in self.parts.items():
            if seconds or name in colors:
                bar = "█" * max(round(40 * seconds / longest), 1) if seconds else ""
                where = "" if name in colors else "may overlap the loop"
                line = Text(f"{name:10}{_time(seconds):10}")
                lines.append(line.append(f"{bar:42}", colors.get(name, "blue")).append(where, "dim"))
        lines += map(Text, self.notes)
        lines += [Text("→ ", style="cyan") + Text(one) for one in self.advice]
        return Group(*lines)


def explain(stats: LoaderStats, configuration: Configuration) -> Explanation:
    """Explain what limits the loop that these statistics describe.

    >>> from gpuloader import DataLoader
    >>> print(explain(DataLoader([1], places="cpu").stats(), Configuration("samples", 0, "process", 2)))
    0 steps so far; an explanation needs at least 5.
    """
    policy, workers = configuration.policy, configuration.workers
    told = configuration.tuned, configuration.started, "" if policy is None else describe_policy(policy)
    tuned = tuple(filter(None, told))
    if stats.steps < FEWEST_STEPS or stats.seconds <= stats.startup:
        steps = "1 step" if stats.steps == 1 else f"{stats.steps} steps"
        summary = f"{steps} so far; an explanation needs at least {FEWEST_STEPS}."
        return Explanation("unknown", 0.0, summary, notes=tuned)
    names = ("wait", "transfer", "compute", "fetch", "stage", "copy")
    parts = {name: getattr(stats, name) / stats.steps for name in names}
    wait, transfer, compute = parts["wait"], parts["transfer"], parts["compute"]
    loop, work = wait + transfer + compute, parts["fetch"] + parts["stage"]
    copying = parts["copy"] / configuration.places
    notes: list[str] = []
    # The bound is the first part that qualifies. Copies come first: a loop that they limit waits for its
    # input, too, because slots return only after their copy.
    if copying >= COPY_SHARE * loop:
        bound, seconds, speed = "copy", min(copying, loop), stats.nbytes / stats.copy / 1e9
        what = f"copying: copies take {_time(copying)}", f", at {speed:.1f} GB/s."
        advice = [
            "transforms=[Normalize(...)]: copy fields in a small dtype such as uint8 and convert them on the "
            "device, so that fewer bytes are copied",
            "cache='device': copies the data only once, if it fits in the device's memory",
        ]
    elif wait >= INPUT_SHARE * loop:
        bound, seconds, rest = "input", wait, transfer + compute
        faster = f" Faster input could make steps up to {loop / rest:.1f} times as fast." if rest else ""
        what = f"input: your loop waits for data {_time(wait)}", f".{faster}"
        notes.append(f"Loading one step takes {_time(work)} of work, done by {name_readers(configuration)}.")
        advice = advise_on_input(configuration, parts, loop, rest)
    elif transfer >= TRANSFER_SHARE * loop:
        bound, seconds, size = "handing over", transfer, format_bytes(stats.nbytes / max(stats.batches, 1))
        what = f"handing over: delivering batches of {size} takes {_time(transfer)}", "."
        advice = ["increase batch_size if the model allows: delivery costs about the same for larger batches"]
        if configuration.forced:  # by default, the loader itself would have stopped the thread
            advice.append(
                f"{_switch(configuration)}: in steps this short, a reader thread costs more than it saves"
            )
    else:
        bound, seconds = "compute", compute
        what = f"compute: your code takes {_time(compute)}", "; the loader keeps up."
        busy, copied = work / max(workers, 1), copying / loop
        if configuration.overlaps and busy:
            notes.append(f"The input could supply steps {loop / busy:.1f} times as fast.")
        if copied:
            overlap = ", in parallel with your code" if configuration.overlaps else ""
            notes.append(f"Copies take {copied:.0%} of the time{overlap}.")
        # A loop that reads nothing ahead issues a copy only when it asks for the batch.
        advice = [
            f"{_switch(configuration)}: copies batches ahead; without it, a step that waits for the device, "
            "for example to read a loss, also waits for the copy of its batch"
        ] * (not (workers or policy) and copied >= INPUT_SHARE)
    share, startup = seconds / loop, stats.startup / stats.seconds
    summary = f"Bound by {what[0]} of each {_time(loop)} step ({share:.0%}){what[1]}"
    if startup >= STARTUP_SHARE:
        begun = f"starting epochs takes {startup:.0%} of the time"
        processes = workers and configuration.worker_type == "process" and configuration.reads != "reader"
        advice.append(
            f"persistent_workers=True: {begun}, and this keeps the worker processes between epochs"
            if processes and not configuration.persistent
            else f"longer epochs, or a faster first batch: {begun}"
        )
    return Explanation(bound, share, summary, parts, (*notes, *tuned), tuple(advice))


def name_readers(configuration: Configuration) -> str:
    """Name the workers or threads that read."""
    count, kind = configuration.workers, configuration.worker_type
    if not count:
        return "a reader thread" if configuration.overlaps else "your loop's own thread"
    if configuration.reads in ("reader", "batches"):
        return f"{count} reader thread"
    return f"{count} worker {kind}{'es' if kind == 'process' else 's'}" if count > 1 else f"1 worker {kind}"


def _switch(configuration: Configuration) -> str:
    """Return the option that lets the loader choose how to read ahead."""
    switches = {"batches": "prefetch=2", "reader": "use_double_buffer=True"}
    return switches.get(configuration.reads, "use_buffer_reader=True")


def describe_policy(policy: ReadAheadPolicy) -> str:
    """Say how batches are read ahead without workers, and why.

    >>> describe_policy(ReadAheadPolicy(read=12_000, step=30_000))
    "Batches are read in your loop's thread: reading takes 12 µs and your step 30 µs, too little to hide."
    >>> print(describe_policy(ReadAheadPolicy(read=1_000_000, step=1_000_000)).partition(", and ")[2])
    a thread hid nothing of it, as with Python code on both sides.
    """
    if policy.fixed:
        return "Batches are read ahead in a thread, because the option is 'thread'."
    if not (policy.read and policy.step):
        return "Batches are read ahead in a thread if that helps; nothing has been measured yet."
    told = f"reading takes {_time(policy.read * 1e-9)} and your step {_time(policy.step * 1e-9)}"
    if policy.threaded:
        return f"Batches are read ahead in a thread: {told}, and the shorter hides behind the longer."
    why = "too little to hide"
    if min(policy.read, policy.step) >= SURE:
        why = "and a thread hid nothing of it, as with Python code on both sides"
    return f"Batches are read in your loop's thread: {told}, {why}."


# What to change if a loop waits for its input.


def advise_on_input(
    configuration: Configuration, parts: dict[str, float], loop: float, rest: float
) -> list[str]:
    """Return what to change if a loop waits for its input, the most promising change first.

    `loop` is the time per step in seconds, and `rest` that time without waiting.
    """
    work = parts["fetch"] + parts["stage"]
    cores, workers, most = configuration.cores, configuration.workers, configuration.most
    if configuration.reads in ("reader", "batches"):
        return _advise_on_thread(configuration, parts, loop)
    if configuration.tuned and configuration.since is None:
        return []  # 'auto' is still searching
    if configuration.reads == "arrays":
        return [
            "cache='device': keeps the arrays on the GPU; without a GPU, increase batch_size: a larger batch "
            "costs less per sample"
        ]
    # Enough workers load a step while the loop computes one. If the loop does nothing else, that takes all
    # cores.
    needed = max(min(math.ceil(work / rest), cores), 1) if rest * cores > work else cores
    indexed = configuration.reads == "samples"  # an iterable dataset takes neither 'auto' nor a cache
    auto = ", or num_workers='auto'" if indexed else ""
    if not workers:
        if loop < TOO_SHORT:
            return ["increase batch_size: in steps this short, workers cost more than they save"]
        more = f"num_workers={needed}{auto}: workers load the next batches while your loop computes"
        return [more, *["cache='host': reads each sample only once, if the data fits in RAM"] * indexed]
    cheaper = "cache='host', or cheaper samples" if indexed else "cheaper samples"
    # Whether Python code makes the samples or they wait for a disk cannot be seen from outside, so say both.
    threads = configuration.worker_type == "thread"
    python = [
        "worker_type='process', if Python code makes the samples: threads run it one at a time (GIL)"
    ] * (threads and has_gil())
    busy = work / (workers * loop)
    if busy < BUSY_SHARE:
        told = f"the workers are busy only {busy:.0%} of the time"
        if loop < TOO_SHORT:
            return [f"num_workers=0: {told}, and in steps this short they cost more than they save"]
        more = f"increase prefetch_factor: {told}; reading further ahead evens out slow batches"
    elif configuration.tuned and workers >= most:
        more = f"num_workers={2 * most}: 'auto' stops at {most} workers, and more may still help"
    elif configuration.tuned:
        more = f"{cheaper}: 'auto' tried more workers and gained nothing"  # no need to try again
    elif workers < cores:
        more = f"num_workers={needed} (now {workers}){auto}: all workers are busy"
    else:
        waits = "worker_type='thread' with more workers"
        if threads:
            waits = "num_workers='auto'" if indexed else "more workers"
        return [
            f"{cheaper}, or transforms= for work that the device can do: all {cores} cores already "
            "have a worker",
            f"{waits}, if samples wait for a disk or a network: a waiting thread needs no core",
            *python,
        ]
    return [more, *python]


def _advise_on_thread(configuration: Configuration, parts: dict[str, float], loop: float) -> list[str]:
    """Return what to change if a loop waits for the one thread that reads its batches."""
    is_reader, busy = configuration.reads == "reader", (parts["fetch"] + parts["stage"]) / loop
    if not configuration.workers and loop < TOO_SHORT:
        larger = "increase batch_size" if is_reader else "larger batches"
        return [f"{larger}: in steps this short, a thread that reads them costs more than it saves"]
    if not configuration.workers and configuration.policy is None:
        return [f"{_switch(configuration)}: reads and copies the next batches while your loop computes"]
    if busy < BUSY_SHARE:
        told = f"the thread is busy only {busy:.0%} of the time"
        # Reading further ahead cannot help a thread that spends its time on handing over batches.
        if loop < SHORT and configuration.forced:
            return [f"use_double_buffer=True: {told}, and in steps this short it costs more than it saves"]
        deeper = "increase capacity" if is_reader else "increase prefetch"
        return [f"{deeper}: {told}; reading further ahead evens out slow batches"]
    if not is_reader:
        return [
            "more workers in the wrapped loader, such as num_workers of PyTorch's: prefetch reads it all the "
            "time, and cannot make it faster",
            "gpuloader.DataLoader instead: writes samples straight into the memory that is copied",
        ]
    in_slots = (
        "set_sample_generator: writes each sample straight into its slot; copying finished batches there "
        "takes longer than reading them"
    )
    return [in_slots] * (parts["stage"] > parts["fetch"]) + [
        "reader.xmap_readers, to map samples in several threads, or use_multiprocess=True, to read in a "
        "process: the reader thread is busy all the time"
    ]


# Formatting.


def _time(seconds: float) -> str:
    """Format a time in a suitable unit.

    >>> _time(0.0000042), _time(0.0313), _time(2.5)
    ('4.2 µs', '31 ms', '2.5 s')
    """
    unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("µs", 1e-6)
    value = seconds / size
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"


def format_bytes(count: float) -> str:
    """Format a number of bytes in a suitable unit."""
    for unit, size in (("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
