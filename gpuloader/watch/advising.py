"""What to change if a loop waits for its input."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuloader.base.platforms import has_gil
from gpuloader.watch.pace import Pace
from gpuloader.watch.stats import LoaderStats

BUSY_SHARE = 0.7
SHORT = 0.5e-3
"""In steps shorter than this, in seconds, the time to pass a batch between threads matters."""
TOO_SHORT = 0.2e-3
"""In steps shorter than this, in seconds, passing batches costs more than any worker or thread saves."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The options of a loader that its explanation depends on.

    Attributes
    ----------
    reads : str
        The kind of data: 'samples' of a map-style dataset, 'arrays' that are gathered, 'items' of an iterable
        dataset, 'reader', or 'batches' of another loader.
    workers : int
        The number of worker threads or processes; a reader thread counts as one.
    worker_type : str
        'process' or 'thread'.
    cores : int
        The CPU cores that this process may use.
    places : int
        Batches per step.
    persistent : bool
        Whether worker processes are kept between epochs.
    tuned : str
        A sentence about the options that are 'auto'; empty if none is.
    most : int
        The most workers that 'auto' may choose.
    since : LoaderStats or None
        The statistics when 'auto' settled, so that the search itself is not explained; None before that.
    pace : Pace or None
        Decides how batches are read ahead without workers; None if they are not.
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
    pace: Pace | None = None

    @property
    def overlaps(self) -> bool:
        """Whether anything is read while the loop computes."""
        return bool(self.workers) or (self.pace is not None and self.pace.threaded)

    @property
    def forced(self) -> bool:
        """Whether the user demanded a reader thread."""
        return self.pace is not None and self.pace.fixed


def advise_on_input(
    configuration: Configuration, parts: dict[str, float], loop: float, rest: float
) -> list[str]:
    """Return what to change if a loop waits for its input, the most promising change first.

    Parameters
    ----------
    configuration : Configuration
        The loader's options.
    parts : dict of str to float
        Seconds per step, as in an explanation.
    loop : float
        Seconds per step in all.
    rest : float
        Seconds per step without waiting.
    """
    work = parts["fetch"] + parts["stage"]
    cores, workers = configuration.cores, configuration.workers
    if configuration.reads == "reader":
        return _advise_on_reader(configuration, parts, loop)
    if configuration.reads == "batches":
        return _advise_on_batches(configuration, parts, loop)
    if configuration.tuned and configuration.since is None:
        return []  # 'auto' is still searching
    if configuration.reads == "arrays":
        return [
            "cache='device': keeps the arrays on the GPU; without a GPU, increase batch_size: a larger batch "
            "costs less per sample"
        ]
    needed = math.ceil(work / rest) if rest * cores > work else cores
    indexed = configuration.reads == "samples"  # an iterable dataset takes neither 'auto' nor a cache
    auto = ", or num_workers='auto'" if indexed else ""
    cheaper = "cache='host', or cheaper samples" if indexed else "cheaper samples"
    if not workers:
        if loop < TOO_SHORT:
            return ["increase batch_size: in steps this short, workers cost more than they save"]
        more = (
            f"num_workers={max(min(needed, cores), 1)}{auto}: workers load the next batches while your "
            "loop computes"
        )
        cache = "cache='host': reads each sample only once, if the data fits in RAM"
        return [more, cache] if indexed else [more]
    threads = configuration.worker_type == "thread"
    python = [
        "worker_type='process', if Python code makes the samples: threads run it one at a time (GIL)"
    ] * (threads and has_gil())
    busy = work / (workers * loop)
    if busy < BUSY_SHARE:
        told = f"the workers are busy only {busy:.0%} of the time"
        if loop < TOO_SHORT:
            return [f"num_workers=0: {told}, and in steps this short they cost more than they save"]
        return [f"increase prefetch_factor: {told}; reading further ahead evens out slow batches", *python]
    if configuration.tuned and workers >= configuration.most:
        most = configuration.most
        more = f"num_workers={2 * most}: 'auto' stops at {most} workers, and more may still help"
    elif configuration.tuned:
        more = f"{cheaper}: 'auto' tried more workers and gained nothing"
    elif workers < cores:
        more = f"num_workers={min(needed, cores)} (now {workers}){auto}: all workers are busy"
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


def _advise_on_reader(configuration: Configuration, parts: dict[str, float], loop: float) -> list[str]:
    if not configuration.workers and loop < TOO_SHORT:
        return ["increase batch_size: in steps this short, a reader thread costs more than it saves"]
    if not configuration.workers and configuration.pace is None:
        return ["use_double_buffer=True: a thread reads the next batch while your loop computes"]
    busy = (parts["fetch"] + parts["stage"]) / loop
    if busy < BUSY_SHARE:
        told = f"the reader thread is busy only {busy:.0%} of the time"
        if loop < SHORT and configuration.forced:
            return [f"use_double_buffer=True: {told}, and in steps this short it costs more than it saves"]
        return [f"increase capacity: {told}; reading further ahead evens out slow batches"]
    advice = [
        "reader.xmap_readers, to map samples in several threads, or use_multiprocess=True, to read in a "
        "process: the reader thread is busy all the time"
    ]
    if parts["stage"] > parts["fetch"]:
        advice.insert(
            0,
            "set_sample_generator: writes each sample straight into its slot; copying finished batches there "
            "takes longer than reading them",
        )
    return advice


def _advise_on_batches(configuration: Configuration, parts: dict[str, float], loop: float) -> list[str]:
    if not configuration.workers and loop < TOO_SHORT:
        return ["larger batches: in steps this short, a thread that reads them costs more than it saves"]
    if configuration.pace is None:
        return ["prefetch=2: reads and copies the next batches while your loop computes"]
    busy = (parts["fetch"] + parts["stage"]) / loop
    if busy < BUSY_SHARE:
        told = f"batches are read only {busy:.0%} of the time"
        return [f"increase prefetch: {told}; reading further ahead evens out slow batches"]
    return [
        "more workers in the wrapped loader, such as num_workers of PyTorch's: prefetch reads it all the "
        "time, and cannot make it faster",
        "gpuloader.DataLoader in its place: writes samples straight into the memory that is copied",
    ]
