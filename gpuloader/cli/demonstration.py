"""``gpuloader mnist``: train on MNIST synchronously, asynchronously, or both, and show the times."""

from __future__ import annotations

import argparse
import contextlib
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuloader.cli import FAILED, align, check_writable, fail, parse_count, parse_place, show_status
from gpuloader.errors import LoaderError, install_command

if TYPE_CHECKING:
    from gpuloader.demo.training import Run

LONGEST_WAIT = 10_000.0

EXPLANATION = """\
The asynchronous way is the default. Where a thread reads ahead, fetch and
stage overlap with the rest, and wait is the part that still delays training.
Recording the timeline takes the rest of the total. The two ways alternate,
an epoch each; the ratio is the median over the turns."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    data = "MNIST as gzipped JSON or a folder of IDX files (default: $GPULOADER_MNIST, else 5,000 digits)"
    # A shell may set the variable to nothing, which means that it names no file.
    add("--data", type=Path, metavar="PATH", default=os.environ.get("GPULOADER_MNIST") or None, help=data)
    add("--place", type=parse_place, metavar="PLACE", help="cpu, gpu:0, … (default: the best available)")
    ways = parser.add_mutually_exclusive_group()
    for name, way, meaning in (
        ("--sync", "synchronous", "train once, reading between steps"),
        ("--async", "asynchronous", "train once, reading ahead"),
        ("--both", None, "train both ways and compare (default)"),
    ):
        ways.add_argument(name, dest="way", action="store_const", const=way, help=meaning)
    add("--epochs", type=parse_count, default=3, metavar="N", help="passes over the data (default: 3)")
    wait = (
        "milliseconds to add to each read and each step, to simulate a slow disk and a large model (default: "
        "2 in a second pair of runs; 0 with --sync or --async)"
    )
    add("--wait", type=parse_wait, metavar="MS", help=wait)
    add("--save", type=Path, metavar="FILE", help="save the trained parameters, as .npz")
    output = "write losses, parameters and a timeline to this folder"
    add("--output", type=Path, metavar="DIR", help=output)


def parse_wait(text: str) -> float:
    """Return an option's milliseconds."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= LONGEST_WAIT:  # false for NaN
            return float(text)
    raise argparse.ArgumentTypeError(f"must be from 0 to {LONGEST_WAIT:g} milliseconds, got {text}")


def run(options: argparse.Namespace) -> int:
    """Train a linear model on MNIST in batches of 100; show losses and where time went.

    The exit code is 1 if the two ways differ in losses or parameters by even one bit.
    """
    from gpuloader.demo import training
    from gpuloader.devices.places import default_place, open_device
    from gpuloader.sources import mnist

    wait = options.wait
    if wait is None:
        wait = 2.0 if options.way is None else 0.0
    try:
        place = options.place or default_place()
        device = open_device(place).name
        digits = mnist.load(options.data).train
        # Before the training, so that a missing folder does not waste it.
        if options.save is not None:
            check_writable(options.save)
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
            check_writable(options.output / "parameters.npz")
    except (LoaderError, OSError) as error:
        fail(error)
    source = "the packaged sample" if options.data is None else options.data.name
    print(f"{len(digits):,} digits from {source}, batches of 100, on {device}", flush=True)
    try:
        groups, comparisons = training.train_in_turn(
            digits, place, way=options.way, epochs=options.epochs, wait=wait / 1e3, tell=show_status
        )
    finally:
        show_status("")
    equal = all(training.are_equal(*runs.values()) for runs in groups.values() if len(runs) == 2)
    ratios = {title: f"{one.median:.2f}" for title, one in comparisons.items()}
    print(f"\n{_render_losses(next(iter(groups.values())))}\n\n{_render_times(groups, ratios, wait)}")
    if options.way is None:
        print(f"\n{EXPLANATION}")
        for title, runs in groups.items():
            verdict = f"{title.capitalize()}: {comparisons[title]}. {runs['asynchronous'].note}"
            print(textwrap.fill(verdict, 80))
        print(f"Losses and parameters {'are equal, bit for bit' if equal else 'differ'}.")
    try:
        _write(groups, options.save, options.output)
    except OSError as error:
        fail(error)
    return 0 if equal else FAILED


def _render_losses(runs: dict[str, Run]) -> str:
    losses = np.stack([run.losses for run in runs.values()], axis=1)
    compared = len(runs) > 1
    rows = [["step", *runs, *["equal"] * compared]]
    # A handful of steps, spread evenly, show the curve and fit on a screen.
    for step in sorted(set(np.linspace(0, len(losses) - 1, 8).round().astype(int).tolist())):
        equal = "yes" if len(set(losses[step].tolist())) == 1 else "NO"
        rows.append([f"{step:,}", *(f"{loss:.6f}" for loss in losses[step]), *[equal] * compared])
    return f"Loss\n{align(rows)}"


def _render_times(groups: dict[str, dict[str, Run]], ratios: dict[str, str], wait: float) -> str:
    """Return where each run's steps spent their time, in microseconds; `wait` is in milliseconds."""
    compared = bool(ratios)
    rows = [["", "fetch", "stage", "wait", "deliver", "compute", "total", *["ratio"] * compared]]
    for title, runs in groups.items():
        heading = f"{title}, {wait:g} ms" if title == "with waits" else title
        rows.append([heading, *[""] * (len(rows[0]) - 1)])
        for way, run in runs.items():
            ratio = [ratios[title] if way == "asynchronous" else "1.00"] if compared else []
            stats = run.stats
            # The wait for the first batch counts too: a thread cannot hide it.
            waited = stats.startup + stats.wait
            times = (stats.fetch, stats.stage, waited, stats.transfer, run.compute, sum(run.turns))
            numbers = [f"{time / len(run.losses) * 1e6:,.0f}" for time in times]
            rows.append([f"  {way}", *numbers, *ratio])
    return f"Where a step's time went, in microseconds\n{align(rows)}"


def _write(groups: dict[str, dict[str, Run]], save: Path | None, output: Path | None) -> None:
    """Save the first group's parameters and losses, and draw a timeline of all runs."""
    first = next(iter(groups.values()))
    [*_, last] = first.values()
    if save is not None:
        last.model.save(save)
        print("Saved the parameters to", save)
    if output is None:
        return
    last.model.save(output / "parameters.npz")
    np.savez(output / "losses.npz", allow_pickle=False, **{way: run.losses for way, run in first.items()})
    from gpuloader.demo import timeline

    # The runs with waits first: there, reading ahead matters.
    spans = {title: {way: run.spans for way, run in groups[title].items()} for title in reversed(groups)}
    drawn = ", timeline.png"
    try:
        timeline.draw(spans, output / "timeline.png")
    except ImportError:
        # A drawing is no reason to fail after the training, and Matplotlib should not be required.
        drawn = ""
        print(f"No timeline.png: it needs matplotlib. Install it: {install_command('demo')}")
    print(f"Wrote parameters.npz, losses.npz{drawn} to {output}/")
