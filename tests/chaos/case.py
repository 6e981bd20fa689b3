"""A case: one program with a loader, what it does with it, and the faults that strike it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from random import Random

MAP_STYLE = ("samples", "arrays", "table", "packed", "concat", "mix", "hdf5")
ITERABLE = ("items", "tar", "parquet")
READERS = ("reader of samples", "reader of lists", "reader of batches")
SOURCES = MAP_STYLE + ITERABLE + READERS
ANY_ORDER = ("mix", "tar", "parquet")
"""Sources whose order the oracle does not know: the mix has its own, and workers divide shards."""
TROUBLED = ("samples", "packed", "items", *READERS)
"""Sources that read their samples with Python code of ours, in which a fault can strike."""

METHODS = ("thread", "fork", "forkserver", "spawn")
WRAPS = ("", "buffered", "xmap", "multiprocess")

LEAVING = ("break", "close", "drop", "cycle", "raise")
ENDS = ("exit", "exit at once", "unhandled", "daemon")
"""Acts that end the program in the middle of a loop."""

OUTSIDE = ("interrupt", "terminate", "kill", "stop")
"""Faults that are signals from another process; SIGCONT follows SIGSTOP."""
LIMITS = ("memory", "descriptors", "processes", "file size")
TROUBLES = ("raise", "raise unpicklable", "leave", "exit", "crash", "sleep", "stall")
"""Faults that strike while a certain sample is read."""

PROGRAM, GROUP = -1, -2
"""Whom a signal hits: the program, or as with Ctrl-C in a terminal, all processes. From 0, a descendant."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    kind : str
        One of `OUTSIDE`, `LIMITS` or `TROUBLES`.
    act : int
        The number of the act during which it strikes.
    at : int
        The step after which a signal is sent, the index of the sample, or what a limit leaves: megabytes,
        descriptors, threads and processes, or bytes in a file.
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


def draw_case(seed: int, number: int) -> Case:
    """Return case `number` of a campaign: the same for the same numbers, on any machine."""
    rng = Random(f"{seed}:{number}")
    case = _draw_loader(rng)
    case = replace(case, acts=_draw_acts(rng, case), held=rng.choice((0, 0, 1, 3, 20)))
    if case.order == "batches":
        case = replace(case, drop_last=False)  # the batch sampler's affair
    if case.cache and case.form in ("dict", "ragged"):
        case = replace(case, cache="")  # caches hold arrays
    return replace(case, catches=rng.random() < 0.4, faults=_draw_faults(rng, case))


def _draw_loader(rng: Random) -> Case:
    source = rng.choices(SOURCES, (8, 3, 2, 2, 2, 2, 1, 6, 1, 1, 2, 2, 2))[0]
    reads, iterable = source in READERS, source in ITERABLE
    workers = 0 if reads else rng.choice((0, 0, 1, 2, 2, 3))
    place = rng.choice(("cpu", "cpu", "simulated"))
    method = rng.choices(METHODS, (6, 6, 6, 1))[0]
    if method == "spawn":
        workers = min(workers, 1)  # each takes a second to start
    in_order = iterable or source == "mix" or rng.random() < 0.85
    return Case(
        seed=rng.randrange(1000),
        source=source,
        wrap=rng.choice(WRAPS) if reads else "",
        multiprocess=reads and rng.random() < 0.2,
        form=_draw_form(rng, source),
        count=rng.choice((1, 7, 12, 24, 24, 60, 200)),
        width=rng.choice((1, 4, 1000)),
        pad=rng.random() < 0.5,
        order="in order" if reads or iterable or source == "mix" else rng.choice(ORDERS),
        # Who reads an iterable cannot know how few items there are, and must reserve a whole batch.
        batch_size=rng.choice((1, 2, 4, 4, 7, 7, 7 if reads or iterable else 10**9)),
        drop_last=source not in ANY_ORDER and rng.random() < 0.3,
        place=place,
        places=rng.choice((1, 1, 1, 2, 3)) if place == "simulated" or in_order else 1,
        output=rng.choice(("", "", "numpy")) if place == "cpu" else "",
        workers=workers,
        method=method,
        prefetch_factor=rng.choice((1, 2, 2, 5, 1000)),
        read_ahead=rng.choice((True, False, "thread")),
        capacity=rng.choice((1, 2, 8)),
        timeout=rng.choice((0.0, 0.0, 600.0)),
        in_order=in_order,
        persistent=rng.random() < 0.4,
        respawn=rng.random() < 0.3,
        cache="host" if not reads and not iterable and source != "mix" and rng.random() < 0.08 else "",
        pause=rng.choice((0.0, 0.0, 0.001, 0.003)),
    )


ORDERS = ("in order", "shuffle", "sampler", "batches")
FORMS = ("array", "tuple", "dict", "ragged")


def _draw_form(rng: Random, source: str) -> str:
    if source in READERS:
        return "tuple"
    if source in ("table", "parquet", "hdf5"):
        return "columns"
    if source == "arrays":
        return "tuple"
    return rng.choice(FORMS)


def _draw_acts(rng: Random, case: Case) -> tuple[str, ...]:
    names = ["loop", "loop", *LEAVING, "two", "threads", "shared", "fork"]
    if case.is_reader:
        names += ["started"] * (case.places == 1)
    if can_resume(case):
        names += ["resume", "resume"]
    acts = ["loop"]  # imports everything, before anything is limited
    count = rng.randrange(1, 3 if case.method == "spawn" and case.workers else 5)
    acts += [f"{rng.choice(names)}:{rng.choice((1, 1, 2, 3, 5))}" for _ in range(count)]
    acts.append("loop")
    if rng.random() < 0.15:
        acts.append(f"{rng.choice(ENDS)}:{rng.choice((0, 1, 3))}")
    return tuple(acts)


def can_resume(case: Case) -> bool:
    return case.source not in ANY_ORDER or case.workers == 0


def _draw_faults(rng: Random, case: Case) -> tuple[Fault, ...]:
    """Return up to two faults, which can strike this case and whose effects the attack can tell."""
    kinds = [*OUTSIDE, *LIMITS]
    if case.source in TROUBLED and not case.cache:
        kinds += TROUBLES
    found: list[Fault] = []
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2))):
        kind = rng.choice(kinds)
        act = rng.randrange(1, max(len(case.acts) - case.ends, 2))
        at, who, delay = rng.choice((0, 0, 1, 2, 5)), PROGRAM, rng.choice((0.0, 0.0, 0.002, 0.01, 0.1))
        if kind in OUTSIDE:
            if case.has_children and rng.random() < 0.6:
                who = GROUP if kind == "interrupt" and rng.random() < 0.7 else rng.randrange(6)
            elif kind == "interrupt":
                who = GROUP
        elif kind in LIMITS:
            sizes = {"memory": (1, 8, 64), "file size": (0, 4096, 1 << 20)}
            at = rng.choice(sizes.get(kind, (0, 1, 2, 4, 8)))
        else:
            at = rng.randrange(case.count)
            delay = rng.choice((0.0, 0.05, 0.5))
        fault = Fault(kind, act, at, who, delay)
        if fits(case, [*found, fault]):
            found.append(fault)
    return tuple(found)


def fits(case: Case, faults: list[Fault]) -> bool:
    """Return whether the attack can tell what these faults may cause together in a case."""
    names = [act.partition(":")[0] for act in case.acts]
    if any(fault.act >= len(case.acts) for fault in faults):
        return False
    if any(fault.ends_program for fault in faults) and len(faults) > 1:
        return False
    # An error in the last act would end the program otherwise than the act does.
    if case.ends and any(fault.kind in ("interrupt", "terminate", "kill") for fault in faults):
        return False
    # A signal to a descendant could hit the fork of an act, which would not be the package's concern.
    if any(fault.who >= 0 for fault in faults) and "fork" in names:
        return False
    if any(fault.kind in LIMITS for fault in faults):
        # A fork of an act inherits the limit. A failed thread of an act is not the package's concern.
        struck = {names[fault.act] for fault in faults if fault.kind in LIMITS}
        if struck & {"fork", "threads", "shared", *ENDS} or len(faults) > 1:
            return False
    interrupts = [fault for fault in faults if fault.kind == "interrupt" and fault.who < 0]
    return not (interrupts and set(names) & {"fork", "threads", "shared"})


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
