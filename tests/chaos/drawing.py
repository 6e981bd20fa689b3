"""Draws cases from a seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.chaos import case as kinds
from tests.chaos.case import Case, Fault
from tests.chaos.failing import CALLS, OF_PYTHON


def draw_case(seed: int, number: int) -> Case:
    """Return case `number` of a campaign: the same for the same numbers, on any machine."""
    rng = Random(f"{seed}:{number}")
    case = _draw_loader(rng)
    case = _draw_extras(rng, case)
    case = replace(case, acts=_draw_acts(rng, case), held=0 if case.static else rng.choice((0, 0, 1, 3, 20)))
    if case.order == "batches":
        case = replace(case, drop_last=False)  # the batch sampler's affair
    if case.cache and case.form in ("dict", "ragged"):
        case = replace(case, cache="")  # caches hold arrays
    return replace(case, catches=rng.random() < 0.4, faults=_draw_faults(rng, case))


def _draw_loader(rng: Random) -> Case:
    source = rng.choices(kinds.SOURCES, (8, 3, 2, 2, 2, 2, 1, 1, 2, 6, 2, 2, 2, 2, 2))[0]
    reads, iterable = source in kinds.READERS, source in kinds.ITERABLE
    workers = 0 if reads else rng.choice((0, 0, 1, 2, 2, 3))
    place = rng.choice(("cpu", "cpu", "simulated"))
    method = rng.choices(kinds.METHODS, (6, 6, 6, 1))[0]
    if method == "spawn":
        workers = min(workers, 1)  # each takes a second to start
    in_order = iterable or source == "mix" or rng.random() < 0.85
    fits_memory = not reads and not iterable and source not in ("mix", "pictures")
    return Case(
        seed=rng.randrange(1000),
        source=source,
        wrap=rng.choice(kinds.WRAPS) if reads else "",
        multiprocess=reads and rng.random() < 0.2,
        form=FORM_OF.get(source) or rng.choice(FORMS),
        count=rng.choice((1, 7, 12, 24, 24, 60, 200)),
        width=rng.choice((1, 4, 1000)),
        pad=rng.random() < 0.5,
        order="in order" if reads or iterable or source in ("mix", "pictures") else rng.choice(ORDERS),
        # Who reads an iterable cannot know how few items there are, and must reserve a whole batch.
        batch_size=rng.choice((1, 2, 4, 4, 7, 7, 7 if reads or iterable else 10**9)),
        drop_last=source not in kinds.ANY_ORDER and rng.random() < 0.3,
        place=place,
        places=rng.choice((1, 1, 1, 2, 3)) if place == "simulated" or in_order else 1,
        output=rng.choice(("", "", "numpy", "torch")) if place == "cpu" else "",
        workers=workers,
        method=method,
        prefetch_factor=rng.choice((1, 2, 2, 5, 1000)),
        read_ahead=rng.choice((True, False, "thread")),
        capacity=rng.choice((1, 2, 8)),
        timeout=rng.choice((0.0, 0.0, 600.0)),
        in_order=in_order,
        persistent=rng.random() < 0.4,
        respawn=rng.random() < 0.3,
        cache="host" if fits_memory and rng.random() < 0.08 else "",
        pause=rng.choice((0.0, 0.0, 0.001, 0.003)),
    )


def _draw_extras(rng: Random, case: Case) -> Case:
    """Return a case with at most one of the features that exclude each other and fit the case."""
    plain = not case.is_reader and case.source != "pictures"
    fitting = ["", "", "program"] if plain else [""]
    if case.is_reader:
        fitting += ["declared", "static"]
    if case.source in ("samples", "packed", "concat") and case.form != "ragged" and case.order != "shuffle":
        fitting += ["torch"] * (case.place == "cpu" and not case.cache)
    if plain and (case.form != "ragged" or case.pad):
        fitting += ["prefetched"]
    if plain and not (case.is_iterable or case.source == "mix" or case.order == "batches" or case.cache):
        fitting += ["split", "ranks"]
        fitting += ["static"] * (case.form in ("array", "tuple", "columns"))
    if case.source in kinds.SERVED:
        fitting = ["", "served", "served"]
    match rng.choice(fitting):
        case "split":
            places = rng.choice((2, 3))
            remainder = rng.choice(("drop", "pad")) if case.batch_size >= places else "pad"
            return replace(case, remainder=remainder, places=places, in_order=True)
        case "ranks":
            ranks, uneven = rng.choice((2, 3)), rng.choice(("drop", "pad"))
            return replace(case, rank=rng.randrange(ranks), ranks=ranks, uneven=uneven, in_order=True)
        case "program":
            if case.form == "ragged":
                return replace(case, program="pad", pad=False)
            return replace(case, program="cast")
        case "static":
            return replace(case, static=True, drop_last=True)
        case "prefetched":
            return replace(case, prefetched=True, output="")
        case "declared":
            return replace(case, declared=True)
        case "torch":
            workers = 0 if case.method == "thread" else case.workers
            plain = {"places": 1, "output": "", "in_order": True, "respawn": False, "face": "torch"}
            return replace(case, workers=workers, **plain)
        case "served":
            return replace(case, served=True)
    return case


ORDERS = ("in order", "shuffle", "sampler", "batches")
FORMS = ("array", "tuple", "dict", "ragged")
FORM_OF = {
    **dict.fromkeys(("table", "parquet", "hdf5", "zarr"), "columns"),
    **dict.fromkeys((*kinds.READERS, "arrays"), "tuple"),
    "pictures": "picture",
}


def _draw_acts(rng: Random, case: Case) -> tuple[str, ...]:
    names = ["loop", "loop", *kinds.LEAVING, "two", "threads", "shared", "fork"]
    if case.is_reader:
        names += ["started"] * (case.places == 1)
    if can_resume(case):
        names += ["resume", "resume", "recover", "recover"]
    names += ["flip"] * (not case.face)
    if case.static:
        names = [name for name in names if name not in ("two", "threads", "shared", "fork")]
    if case.source == "zarr" and case.served:
        # Zarr leaves its sessions open. aiohttp complains of that when a fork exits, or its parent, also in a
        # program that opens an array with Zarr alone.
        names.remove("fork")
    acts = ["loop"]  # imports everything, before anything is limited
    count = rng.randrange(1, 3 if case.method == "spawn" and case.workers else 5)
    acts += [f"{rng.choice(names)}:{rng.choice((1, 1, 2, 3, 5))}" for _ in range(count)]
    acts.append("loop")
    if rng.random() < 0.15:
        acts.append(f"{rng.choice(kinds.ENDS)}:{rng.choice((0, 1, 3))}")
    return tuple(acts)


def can_resume(case: Case) -> bool:
    return (case.source not in kinds.ANY_ORDER or case.workers == 0) and not case.face


def _draw_faults(rng: Random, case: Case) -> tuple[Fault, ...]:
    """Return up to two faults, which can strike this case and whose effects the attack can tell."""
    fitting = [*kinds.OUTSIDE, *kinds.LIMITS, "call", "call", kinds.LINE, kinds.LINE, kinds.LINE]
    if case.source in kinds.TROUBLED and not case.cache:
        fitting += kinds.TROUBLES
    if case.served:
        fitting = [*kinds.OUTSIDE, *kinds.SERVER, *kinds.SERVER]
    elif case.face:
        fitting = [*kinds.OUTSIDE, kinds.LINE]
    # Packages whose imports or threads a limit would strike.
    elif case.source in ("pictures", "zarr") or case.output == "torch":
        fitting = [kind for kind in fitting if kind not in kinds.LIMITS and kind != "call"]
    calls = [kind for kind in CALLS if kind not in OF_PYTHON or case.method in ("thread", "fork")]
    found: list[Fault] = []
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2))):
        kind = rng.choice(fitting)
        kind = rng.choice(calls) if kind == "call" else kind
        act = rng.randrange(1, max(len(case.acts) - case.ends, 2))
        at, who, delay = rng.choice((0, 0, 1, 2, 5)), kinds.PROGRAM, rng.choice((0.0, 0.0, 0.002, 0.01, 0.1))
        if kind in kinds.OUTSIDE:
            if case.has_children and rng.random() < 0.6:
                who = kinds.GROUP if kind == "interrupt" and rng.random() < 0.7 else rng.randrange(6)
            elif kind == "interrupt":
                who = kinds.GROUP
        elif kind == kinds.LINE:
            at = int(10 ** rng.uniform(0, 3.5))
        elif kind in CALLS:
            at = rng.choice((0, 0, 1, 2, 3, 5, 8, 13, 30))
        elif kind in kinds.SERVER:
            at = rng.choice((1, 2, 1000))
        elif kind in kinds.LIMITS:
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
    if case.ends and any(fault.kind in (kinds.LINE, "interrupt", "terminate", "kill") for fault in faults):
        return False
    # A signal to a descendant could hit the fork of an act, which would not be the package's concern.
    if any(fault.who >= 0 for fault in faults) and "fork" in names:
        return False
    if any(fault.kind in kinds.LIMITS or fault.kind in CALLS for fault in faults):
        # A fork of an act inherits the limit. A failed thread of an act is not the package's concern.
        struck = {names[fault.act] for fault in faults if fault.kind in kinds.LIMITS or fault.kind in CALLS}
        if struck & {"fork", "threads", "shared", *kinds.ENDS} or len(faults) > 1:
            return False
    if len([fault for fault in faults if fault.kind in kinds.SERVER]) > 1:
        return False
    interrupts = [fault for fault in faults if fault.interrupts]
    return not (interrupts and set(names) & {"fork", "threads", "shared"})
