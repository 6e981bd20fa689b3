"""Load in one process for as long as a training runs, and measure whether it grows."""

from __future__ import annotations

import faulthandler
import gc
import os
import statistics
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import replace
from multiprocessing import resource_tracker

from tests.chaos.acts import Acts
from tests.chaos.case import TROUBLES, Case
from tests.chaos.drawing import draw_case
from tests.chaos.judging import judge_errors
from tests.chaos.subject import open_descriptors, wait_for_residue

# Arrow's memory is counted apart: its allocator, mimalloc, keeps what was freed by threads that have ended,
# so it grows in steps, to 54 MiB in an hour of seed 7 (1,902 loaders, 79,533 batches). The rest was 159 MiB
# then, and had grown by 2.0 after the first fifth of the time. No source leaks by itself: 150 loaders over
# it, inline, grow a process by 0.2 KiB each at most, if as many came before them.
GROWTH = 32 << 20
"""Bytes by which the process, without Arrow's memory, may grow from the soak's first part to its last."""
IN_USE = 1 << 20
"""The most bytes that Arrow may say are in use at the end, when no loader is left."""
WARM = 0.2
"""The part of the time in which packages are imported and pools are filled."""

_DEADLINE = 900.0  # seconds that one case may take
_ROUND = 25  # cases between two looks at what is left
_PATIENCE = 60.0


def tamed(case: Case) -> Case:
    """Return a case without what would end this process, or would need another one to help."""
    acts = case.acts[:-1] if case.ends else case.acts
    acts = tuple(act for act in acts if not act.startswith("fork"))
    harmless = {*TROUBLES} - ({"stall"} if case.workers else {"stall", "leave"})
    kept = [
        replace(fault, act=min(fault.act, len(acts) - 1)) for fault in case.faults if fault.kind in harmless
    ]
    return replace(case, served=False, acts=acts, faults=tuple(kept))


def soak(seed: int, minutes: float) -> int:
    """Load for so many minutes; return 1 if there are findings, which are printed."""
    print(f"soak: seed {seed}, {minutes:g} minutes", flush=True)
    resource_tracker.ensure_running()
    import pyarrow as pa
    import zarr

    zarr.zeros(1)[0]  # its event loop stays, with descriptors
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    counts: Counter[str] = Counter()
    sizes: list[tuple[float, int, int]] = []  # seconds, bytes without Arrow's memory, bytes of that
    findings: list[str] = []
    begun = said = time.monotonic()
    end, number = begun + 60 * minutes, 0
    while (now := time.monotonic()) < end:
        findings += _perform(tamed(draw_case(seed, number)), counts, f"case {seed}:{number}")
        number += 1
        gc.collect()
        sizes.append((now - begun, *read_sizes()))
        if number % _ROUND == 0:
            findings += _look(descriptors, threads, number)
        if now - said > 60:
            said = now
            print(_describe(counts, number, sizes, now - begun), flush=True)
    findings += _look(descriptors, threads, number)
    grown = growth(sizes)
    print(_describe(counts, number, sizes, time.monotonic() - begun))
    said_of = f"{grown / 2**20:+.1f} MiB, {len(findings)} findings"
    print(f"growth after the first {WARM:.0%} of the time: {said_of}")
    if grown > GROWTH:
        findings.append(f"the process has grown by {grown / 2**20:.1f} MiB")
    if (in_use := pa.total_allocated_bytes()) > IN_USE:
        findings.append(f"{in_use / 2**20:.1f} MiB of Arrow's memory are in use")
    for finding in findings:
        print(f"FINDING {finding}")
    return 1 if findings else 0


def read_sizes() -> tuple[int, int]:
    """Return the resident bytes of this process without Arrow's memory, and those of that."""
    # mimalloc reserves its arenas as mappings of 1 GiB; nothing else here is as large and in memory.
    rest, pool, is_pool = 0, 0, False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(" ")
            if not name.endswith(":"):
                start, end = (int(address, 16) for address in name.split("-"))
                is_pool = end - start >= 1 << 30
            elif name == "Rss:":
                size = int(value.split()[0]) << 10
                rest, pool = (rest, pool + size) if is_pool else (rest + size, pool)
    return rest, pool


def growth(sizes: list[tuple[float, int, int]]) -> int:
    """Return by how many bytes the last part of a soak is larger than the first one behind its beginning."""
    last = sizes[-1][0] or 1 if sizes else 1
    early = [size for when, size, _ in sizes if WARM <= when / last <= 2 * WARM]
    late = [size for when, size, _ in sizes if when / last >= 1 - WARM]
    return int(statistics.median(late) - statistics.median(early)) if early and late else 0


def _perform(case: Case, counts: Counter[str], name: str) -> list[str]:
    """Perform a case's acts in this process; return what no fault explains."""
    faulthandler.dump_traceback_later(_DEADLINE, exit=True)
    told = []
    with tempfile.TemporaryDirectory(prefix="gpuloader-soak-") as folder:
        acts = Acts(case, folder, lambda _: counts.update(["batches"]))
        for number, act in enumerate(case.acts):
            for fault, one in enumerate(case.faults):
                if one.act == number:
                    acts.source.troubles.arm(fault)
            counts["acts"] += 1
            try:
                acts.perform(act)
            except Exception as error:
                counts["errors"] += 1
                names = [one.__name__ for one in type(error).__mro__]
                told.append({"act": number, "error": names, "text": traceback.format_exc()})
                traceback.clear_frames(error.__traceback__)
        acts.end()
    faulthandler.cancel_dump_traceback_later()
    return [f"{name} {case.to_json()}: {finding}" for finding in judge_errors(case, told)]


def _look(descriptors: dict[int, str], threads: set[threading.Thread], number: int) -> list[str]:
    left = wait_for_residue(descriptors, threads, _PATIENCE)
    return [f"after {number} cases: {kind} {what}" for kind, what in left.items()]


def _describe(counts: Counter[str], cases: int, sizes: list[tuple[float, int, int]], seconds: float) -> str:
    return (
        f"{seconds:.0f} s: {cases} loaders, {counts['acts']} epochs and more, {counts['batches']} batches, "
        f"{counts['errors']} errors asked for, {sizes[-1][1] / 2**20:.1f} MiB "
        f"and {sizes[-1][2] / 2**20:.1f} MiB of Arrow's, "
        f"{len(os.listdir('/proc/self/fd'))} descriptors"
    )
