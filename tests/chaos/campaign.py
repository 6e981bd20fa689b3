"""A campaign: many cases, several at once, until the time is over; findings are printed and made smaller."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from tests.chaos.attack import Verdict, attack
from tests.chaos.case import Case, simplify
from tests.chaos.drawing import draw_case

_EVERY = 60.0  # seconds between lines that say how far it is


def run_campaign(seed: int, seconds: float, jobs: int, first: int = 0) -> list[tuple[int, Verdict]]:
    """Attack for `seconds`; return the cases with findings and their numbers."""
    print(f"seed {seed}, {seconds:.0f} s, {jobs} at a time", flush=True)
    begun = said = time.monotonic()
    found: list[tuple[int, Verdict]] = []
    faults: Counter[str] = Counter()
    count, number, running = 0, first, {}
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and time.monotonic() - begun < seconds:
                running[pool.submit(attack, draw_case(seed, number))] = number
                number += 1
            if not running:
                break
            done, _ = wait(running, timeout=_EVERY, return_when=FIRST_COMPLETED)
            for future in done:
                count += 1
                verdict = future.result()
                faults.update(fault.kind for fault in verdict.case.faults)
                if verdict.findings:
                    found.append((running[future], verdict))
                    show(verdict, f"--case {seed}:{running[future]}")
                del running[future]
            if time.monotonic() - said > _EVERY:
                said = time.monotonic()
                print(f"{said - begun:.0f} s: {count} cases, {len(found)} with findings", flush=True)
    struck = ", ".join(f"{kind} {times}" for kind, times in sorted(faults.items()))
    print(f"seed {seed}: {count} cases in {time.monotonic() - begun:.0f} s, faults: {struck}")
    print(f"seed {seed}: {len(found)} cases with findings", flush=True)
    return found


def show(verdict: Verdict, how: str) -> None:
    """Print a finding, and the command that runs its case again."""
    lines = [f"FINDING {finding}" for finding in verdict.findings]
    command = shlex.join([sys.executable, "-m", "tests.chaos", *how.split(maxsplit=1)])
    again = [f"again:  {command}", f"case:   {verdict.case.to_json()}"]
    print("\n".join([*lines, *again, verdict.details, "-" * 80]), flush=True)


def repeat(case: Case, times: int, jobs: int) -> Iterator[Verdict]:
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda _: attack(case), range(times))


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return a case that still fails, of which no fault, act or option can be left out."""
    while True:
        for smaller in simplify(case):
            if fails(smaller):
                print(f"smaller: {smaller.to_json()}", flush=True)
                case = smaller
                break
        else:
            return case


def usable_jobs() -> int:
    return max(len(os.sched_getaffinity(0)), 1)
