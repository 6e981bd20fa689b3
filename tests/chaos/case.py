"""A case: one program with a loader, what it does with it, and the faults that strike it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

MAP_STYLE = ("samples", "arrays", "table", "packed", "concat", "mix", "hdf5", "pictures")
ITERABLE = ("items", "tar", "parquet")
READERS = ("reader of samples", "reader of lists", "reader of batches")
SOURCES = MAP_STYLE + ITERABLE + READERS
ANY_ORDER = ("mix", "tar", "parquet")
"""Sources whose order the oracle does not know: the mix has its own, and workers divide shards."""
TROUBLED = ("samples", "packed", "items", *READERS)
"""Sources that read their samples with Python code of ours, in which a fault can strike."""

METHODS = ("thread", "fork", "forkserver", "spawn")
SERVED = ("tar", "parquet")
"""Sources that a server may hold."""

WRAPS = ("", "buffered", "xmap", "multiprocess")

LEAVING = ("break", "close", "drop", "cycle", "raise")
ENDS = ("exit", "exit at once", "unhandled", "daemon")
"""Acts that end the program in the middle of a loop."""

OUTSIDE = ("interrupt", "terminate", "kill", "stop")
"""Faults that are signals from another process; SIGCONT follows SIGSTOP."""
LIMITS = ("memory", "descriptors", "processes", "file size")
TROUBLES = ("raise", "raise unpicklable", "leave", "exit", "crash", "sleep", "stall")
"""Faults that strike while a certain sample is read."""

SERVER = ("cut", "reset", "silence", "refuse", "whole")
"""What a server does to some requests: see `server`."""

PROGRAM, GROUP = -1, -2
"""Whom a signal hits: the program, or as with Ctrl-C in a terminal, all processes. From 0, a descendant."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    kind : str
        One of `OUTSIDE`, `LIMITS`, `TROUBLES` or `SERVER`.
    act : int
        The number of the act during which it strikes.
    at : int
        The step after which a signal is sent, the index of the sample, or what a limit leaves: megabytes,
        descriptors, threads and processes, or bytes in a file, or how many requests a server spoils.
    who : int
        Whom a signal hits.
    delay : float
        Seconds from that step to the signal, or that a sample takes.
    """

    kind: str
    act: int = 1
    at: int = 0
    who: int = PROGRAM
    delay: float = 0.0

    @property
    def ends_program(self) -> bool:
        return self.who < 0 and self.kind in ("interrupt", "terminate", "kill")


@dataclass(frozen=True)
class Case:
    """One program. The defaults are the plainest one, to which a finding is reduced.

    Attributes
    ----------
    acts : tuple of str
        What the program does with the loader, as ``name`` or ``name:number``, where the number counts steps
        or threads.
    held : int
        How many batches the program keeps.
    catches : bool
        Whether the program catches Ctrl-C and goes on with its next act.
    pause : float
        Seconds that each sample takes.
    defect : str
        An error to put into the package first; see `defects`.
    program : str
        What is done to the batches where they land: "cast" converts field x, "pad" pads field tail.
    remainder : str
        How a batch that is cut into a part for each place treats what is left over; empty if none is cut.
    rank, ranks, uneven : int, int, str
        The part of each step that the loader reads, and what becomes of an incomplete one.
    prefetched : bool
        Whether `gpuloader.prefetch` is around the loader, and brings the batches to the places.
    served : bool
        Whether the files are read from a server.

    The other attributes are options of the loader and of its source.
    """

    seed: int = 0
    source: str = "samples"
    wrap: str = ""
    multiprocess: bool = False
    form: str = "array"
    count: int = 12
    width: int = 2
    pad: bool = True
    order: str = "in order"
    batch_size: int = 4
    drop_last: bool = False
    place: str = "cpu"
    places: int = 1
    output: str = ""
    workers: int = 0
    method: str = "thread"
    prefetch_factor: int = 2
    read_ahead: bool | str = True
    capacity: int = 2
    timeout: float = 0.0
    in_order: bool = True
    persistent: bool = False
    respawn: bool = False
    cache: str = ""
    held: int = 0
    pause: float = 0.0
    acts: tuple[str, ...] = ("loop",)
    faults: tuple[Fault, ...] = ()
    catches: bool = False
    defect: str = ""
    program: str = ""
    remainder: str = ""
    rank: int = 0
    ranks: int = 1
    uneven: str = "drop"
    prefetched: bool = False
    static: bool = False
    served: bool = False

    @property
    def is_reader(self) -> bool:
        return self.source in READERS

    @property
    def is_iterable(self) -> bool:
        return self.source in ITERABLE

    @property
    def in_processes(self) -> bool:
        return self.workers > 0 and self.method != "thread"

    @property
    def has_children(self) -> bool:
        return self.in_processes or (self.is_reader and (self.multiprocess or self.wrap == "multiprocess"))

    @property
    def ends(self) -> bool:
        return self.acts[-1].partition(":")[0] in ENDS

    def to_json(self) -> str:
        """Return what differs from the plainest case."""
        plain = asdict(Case())
        return json.dumps({name: value for name, value in asdict(self).items() if value != plain[name]})

    @classmethod
    def of_json(cls, text: str) -> Case:
        given = json.loads(text)
        given["acts"] = tuple(given.get("acts", cls().acts))
        given["faults"] = tuple(Fault(**fault) for fault in given.get("faults", ()))
        return cls(**given)


def simplify(case: Case):
    """Yield cases that lack one fault, one act or one option of this one, the largest steps first."""
    for number in range(len(case.faults)):
        yield replace(case, faults=case.faults[:number] + case.faults[number + 1 :])
    for number in range(len(case.acts) - 1, 0, -1):
        if all(fault.act != number for fault in case.faults):
            kept = tuple(replace(fault, act=fault.act - (fault.act > number)) for fault in case.faults)
            yield replace(case, acts=case.acts[:number] + case.acts[number + 1 :], faults=kept)
    plain = Case(source=case.source, form=case.form, wrap=case.wrap, method=case.method)
    for one in fields(Case):
        is_fixed = one.name in ("seed", "acts", "faults", "defect", "source", "form")
        if not is_fixed and getattr(case, one.name) != getattr(plain, one.name):
            yield replace(case, **{one.name: getattr(plain, one.name)})
