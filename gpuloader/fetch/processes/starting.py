"""Loader's side: starting worker processes by fork, with the fork server, or by spawn."""

from __future__ import annotations

import multiprocessing
import socket
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from gpuloader.errors import LoaderError, StagingMemoryError
from gpuloader.fetch.processes import worker
from gpuloader.fetch.processes.child import Child, StartedChild
from gpuloader.fetch.processes.fork_server import fork_worker, without_main
from gpuloader.fetch.processes.setup import Setup
from gpuloader.fetch.processes.shipping import IN_BAND_LIMIT, Parcel, Unshippable, pack
from gpuloader.sources.packed import pack_list
from gpuloader.system.interrupts import exit_first
from gpuloader.system.platforms import may_fork_unasked
from gpuloader.system.processes import start_process

exit_first()  # before what `multiprocessing` has registered


@dataclass(frozen=True, slots=True)
class Start:
    """How worker processes start, and how they get their setup.

    Attributes
    ----------
    method : str
        'fork', 'forkserver' or 'spawn'.
    setup : Setup
        The setup, which forked workers inherit.
    parcel : Parcel or None
        The pickled setup, for workers that are not forked.
    """

    method: str
    setup: Setup
    parcel: Parcel | None


def choose_start(setup: Setup, method: str | None) -> Start:
    """Choose how workers start: by `method`, or if that is None by the dataset.

    The default is a fork server, which has loaded NumPy and this package and has no threads or locks of the
    user's program. Workers are forked instead, if that is safe, when the dataset cannot be pickled, or when
    it holds so many Python objects that unpickling them in every worker would cost more.

    Raises
    ------
    LoaderError
        The dataset cannot be pickled, and the method needs that.
    StagingMemoryError
        There is too little memory for a copy of the dataset's arrays, and forking is not an option.
    """
    if method == "fork":
        return Start("fork", setup, None)
    packed = pack_list(setup.reading.dataset, IN_BAND_LIMIT)
    if packed is not None:
        source = replace(setup.reading.source, dataset=packed)
        setup = replace(setup, reading=replace(setup.reading, source=source))
    may_fork = method is None and may_fork_unasked()
    try:
        parcel = pack(setup) if method is None else pack(setup, limit=None)
    except StagingMemoryError:
        if not may_fork:
            raise
        return Start("fork", setup, None)  # forking needs no second copy of the dataset's arrays
    except Unshippable as reason:
        if not may_fork:
            what = str(reason).removeprefix("Setup.").removeprefix("reading.").removeprefix("source.")
            raise LoaderError(
                f"the dataset cannot be sent to worker processes: {what}; make "
                "it picklable, or pass start_method='fork' or worker_type='thread'"
            ) from reason
        return Start("fork", setup, None)
    if parcel.needs_main and may_fork:
        # Importing the main module in every worker could run the whole program again.
        parcel.close()
        return Start("fork", setup, None)
    return Start(method or "forkserver", setup, parcel)


def start_child(start: Start, number: int, link: socket.socket) -> Child:
    """Start worker `number`, which takes over its end of the link; the caller holds `starting()`.

    Raises
    ------
    LoaderError
        The fork server died twice.
    OSError
        The system starts no more processes.
    """
    parcel = start.parcel
    if start.method == "forkserver" and parcel is not None:
        return fork_worker(number, link, parcel.modules, needs_main=parcel.needs_main)
    context: Any = multiprocessing.get_context(start.method)
    process = context.Process(
        target=worker.run,
        args=(link, number, start.setup if parcel is None else None),
        name=f"gpuloader-worker-{number}",
        daemon=True,
    )
    with nullcontext() if parcel is None or parcel.needs_main else without_main():
        start_process(process)
    return StartedChild(process)
