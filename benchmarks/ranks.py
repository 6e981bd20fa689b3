"""Simulate up to 4,096 ranks of one dataset: the cost and evenness of a rank's part, the size of its state.

This starts no processes. A rank is a number, and its part of an epoch is a slice of an order that can be
computed from any position.

python benchmarks/ranks.py [--samples N] [--batch-size N] [--repeats N] [--output FILE]
python benchmarks/ranks.py --table FILE     prints the table of an earlier run
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import describe_machine, make_parser, run_script
from gpuloader import DataLoader
from gpuloader.order.dividing import Division, Share
from gpuloader.order.order import Shuffled
from gpuloader.order.plan import OrderedPlan

WORLD_SIZES = (1, 8, 64, 512, 4096)
GOAL_MS = 1.0
_BINS = 256
_EXCEEDED = 330.52
"""A chi-squared variable with 255 degrees of freedom exceeds this once in 1,000 times."""


def spread_ms(run: Callable[[], object], repeats: int) -> dict[str, float]:
    """Return the median, the 99th percentile and the worst of the milliseconds that `run` takes.

    This is the thread's CPU time, so that other load on the machine does not affect the cost of a lookup.
    """
    taken = []
    for _ in range(repeats):
        begun = time.thread_time_ns()
        run()
        taken.append((time.thread_time_ns() - begun) * 1e-6)
    return {"median": median(taken), "p99": float(np.quantile(taken, 0.99)), "worst": max(taken)}


def time_slices(samples: int, batch_size: int, world_size: int, repeats: int) -> dict[str, Any]:
    """Return the cost for one rank of looking up batches: at random, and consecutively."""
    draw = np.random.default_rng(world_size)

    def look_up_one() -> object:
        rank = int(draw.integers(world_size))
        share = Share(Shuffled(samples, 1, 2), 0, batch_size, Division(rank, world_size, "pad"))
        begin = int(draw.integers(len(share) // batch_size)) * batch_size
        return share.slice(begin, begin + batch_size)

    plan = OrderedPlan(
        Shuffled(samples, 1, 2), batch_size, False, Division(world_size - 1, world_size, "pad")
    )
    count = samples // world_size // batch_size
    first = min(100, count // 2)
    batches = plan.batches(first)
    tracemalloc.start()
    list(islice(plan.batches(first), 10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "any": spread_ms(look_up_one, repeats),
        "next": spread_ms(lambda: next(batches), min(repeats, count - first)),
        "peak_bytes": peak,
    }


def measure_evenness(samples: int, batch_size: int, world_size: int) -> dict[str, float]:
    """Return how far the indices of one rank are from uniform, and the skew between ranks.

    The skew is the largest number of unmasked samples of any rank minus the smallest. It is taken over
    sample counts whose last step is whole, one sample short, or a single sample.
    """
    share = Share(Shuffled(samples, 3, 0), 0, batch_size, Division(world_size // 2, world_size, "pad"))
    entries = np.asarray(share.slice(0, min(len(share), 1 << 16)))
    counts = np.bincount(entries * _BINS // samples, minlength=_BINS)
    expected = len(entries) / _BINS
    step = batch_size * world_size
    skews = []
    for count in (samples, samples - samples % step, samples - samples % step - 1, step + 1):
        own = []
        for rank in range(world_size):
            division = Division(rank, world_size, "pad")
            steps = division.count(count, batch_size)
            own.append((steps - 1) * batch_size + division.own(count - (steps - 1) * step, batch_size)[0])
        skews.append(max(own) - min(own))
    return {"chi_squared": float(((counts - expected) ** 2 / expected).sum()), "skew": max(skews)}


def state_bytes(samples: int, batch_size: int, world_size: int) -> int:
    """Return the size of a loader's state as JSON, in the middle of an epoch and with the largest seed."""
    loader = DataLoader(
        range(samples),
        places="cpu",
        batch_size=batch_size,
        shuffle=True,
        seed=2**64 - 1,
        shard=(world_size - 1, world_size),
    )
    for _ in islice(loader, 3):
        pass
    return len(json.dumps(loader.state_dict()))


def measure(samples: int, batch_size: int, repeats: int) -> dict[str, Any]:
    """Measure all world sizes and return the report."""
    rows = []
    for world_size in WORLD_SIZES:
        if samples < 2 * world_size * batch_size:
            break  # too few batches per rank to look up consecutive ones
        print(f"measuring {world_size} ranks …", file=sys.stderr, flush=True)
        rows.append(
            {
                "world_size": world_size,
                **time_slices(samples, batch_size, world_size, repeats),
                **measure_evenness(samples, batch_size, world_size),
                "state_bytes": state_bytes(samples, batch_size, world_size),
            }
        )
    machine = describe_machine()
    return {
        "machine": machine,
        "samples": samples,
        "batch_size": batch_size,
        "repeats": repeats,
        "rows": rows,
    }


def render(report: dict[str, Any]) -> str:
    """Return a report as a Markdown table."""
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items() if name != "package")
    lines = [
        f"Measured on: {machine}. {report['samples']:,} samples, shuffled, batches of "
        f"{report['batch_size']}; "
        f"{report['repeats']:,} lookups each, in CPU time: median, 99th percentile, worst; goal: "
        f"{GOAL_MS:.0f} ms. Chi-squared of a rank's indices in {_BINS} bins exceeds {_EXCEEDED} once in "
        "1,000 times.",
        "",
        "| ranks | any batch, ms | next batch, ms | memory, KB | chi-squared | skew, samples | state, B |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        times = " | ".join(
            f"{row[kind]['median']:.3f}, {row[kind]['p99']:.3f}, {row[kind]['worst']:.3f}"
            for kind in ("any", "next")
        )
        lines.append(
            f"| {row['world_size']:,} | {times} | {row['peak_bytes'] / 1e3:,.0f} | "
            f"{row['chi_squared']:.1f} | {row['skew']} | {row['state_bytes']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the report to a file."""
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=10**9, help="size of the dataset (default: 10**9)")
    parser.add_argument("--batch-size", type=int, default=256, help="batch size per rank (default: 256)")
    parser.add_argument("--repeats", type=int, default=900, help="lookups of each kind (default: 900)")
    run_script(parser, lambda options: measure(options.samples, options.batch_size, options.repeats), render)


if __name__ == "__main__":
    main()
