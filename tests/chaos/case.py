"""A case: one program with a loader, what it does with it, and the faults that strike it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

MAP_STYLE = ("samples", "arrays", "table", "packed", "concat", "mix", "hdf5", "zarr", "pictures")
ITERABLE = ("items", "tar", "parquet")
READERS = ("reader of samples", "reader of lists", "reader of batches")
SOURCES = MAP_STYLE + ITERABLE + READERS
ANY_ORDER = ("mix", "tar", "parquet")
"""Sources whose order the oracle does not know: the mix has its own, and workers divide shards."""
TROUBLED = ("samples", "packed", "items", *READERS)
"""Sources that read their samples with Python code of ours, in which a fault can strike."""

METHODS = ("thread", "fork", "forkserver", "spawn")
SERVED = ("tar", "parquet", "hdf5", "zarr")
"""Sources that a server may hold."""

WRAPS = ("", "buffered", "xmap", "multiprocess")

LEAVING = ("break", "close", "drop", "cycle", "raise")
ENDS = ("exit", "exit at once", "unhandled", "daemon")
"""Acts that end the program in the middle of a loop."""

OUTSIDE = ("interrupt", "terminate", "kill", "stop")
"""Faults that are signals from another process; SIGCONT follows SIGSTOP."""
LIMITS = ("memory", "descriptors", "processes", "file size")
LINE = "line"
"""The fault that is a Ctrl-C at a certain line of the package."""
TROUBLES = ("raise", "raise unpicklable", "leave", "exit", "crash", "sleep", "stall")
"""Faults that strike while a certain sample is read."""

SERVER = ("cut", "reset", "silence", "refuse", "whole")
"""What a server does to some requests: see `server`."""

PROGRAM, GROUP = -1, -2
"""Whom a signal hits: the program, or as with Ctrl-C in a terminal, all processes. From 0, a descendant."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: str  # one of `OUTSIDE`, `LIMITS`, `TROUBLES` or `SERVER`, `LINE`, or one of `failing.CALLS`
    act: int = 1  # the number of the act during which it strikes
    # The step after which a signal is sent, the index of the sample, or what a limit leaves: megabytes,
    # descriptors, threads and processes, or bytes in a file, how many requests a server spoils, the number of
    # the line, or how many calls succeed.
    at: int = 0
    who: int = PROGRAM  # whom a signal hits
    delay: float = 0.0  # seconds from that step to the signal, or that a sample takes

    @property
    def interrupts(self) -> bool:
        """Whether it is a Ctrl-C for the program."""
        return self.kind == LINE or (self.kind == "interrupt" and self.who < 0)

    @property
    def ends_program(self) -> bool:
        return self.interrupts or (self.who < 0 and self.kind in ("terminate", "kill"))


@dataclass(frozen=True)
class Case:
    """One program. The defaults are the plainest one, to which a finding is reduced.

    What has no comment is an option of the loader or of its source.
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
    held: int = 0  # how many batches the program keeps
    pause: float = 0.0  # seconds that each sample takes
    # What the program does with the loader, as ``name`` or ``name:number``: steps or threads.
    acts: tuple[str, ...] = ("loop",)
    faults: tuple[Fault, ...] = ()
    catches: bool = False  # whether the program catches Ctrl-C and goes on with its next act
    defect: str = ""  # an error to put into the package first; see `defects`
    program: str = ""  # what is done to the batches where they land: "cast" field x, or "pad" field tail
    remainder: str = ""  # what becomes of the rest of a batch that is cut for places; empty if none is cut
    rank: int = 0
    ranks: int = 1
    uneven: str = "drop"  # what becomes of an incomplete step
    prefetched: bool = False  # whether `gpuloader.prefetch` is around the loader, and brings the batches
    static: bool = False
    declared: bool = False  # whether a reader's fields are declared
    face: str = ""  # "torch": the loader is that of `gpuloader.torch`
    served: bool = False  # whether the files are read from a server

    @property
    def is_reader(self) -> bool:
        return self.source in READERS

    @property
    def has_extra(self) -> bool:
        """Whether batches may hold more than the samples asked for."""
        return bool(self.remainder or self.ranks > 1)

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
