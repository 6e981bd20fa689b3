"""``python -m gpuloader.demo``: train on MNIST, synchronously and asynchronously, and compare.

It runs the pair twice: as it is, and with a slow disk and a larger model stood in for by waits.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from gpuloader.demo.timeline import draw
from gpuloader.demo.training import Run, train
from gpuloader.devices import default_place, open_device
from gpuloader.errors import LoaderError
from gpuloader.places import Place, parse_place
from gpuloader.sources import mnist
from gpuloader.sources.digits import DigitSet

Pair = tuple[Run, Run]
AS_IT_IS = "as it is"
SLOWED = "with waits"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; return 0 if both ways of reading gave equal losses, else 1."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 100)
    try:
        place = parse_place(options.place) if options.place else default_place()
        device = open_device(place)
        console.print(f"Reading {options.data or 'the 5,000 digits in the package'} …")
        digits = mnist.load(options.data).train
    except (LoaderError, OSError) as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        return 2
    console.print(
        f"{len(digits):,} digits, {options.epochs} epochs of batches of 100, on [b]{device.name}[/b]"
    )
    train(digits, place, epochs=1, asynchronous=True)  # warm caches, memory and, on a GPU, its libraries
    wait = options.wait / 1000
    pairs = {AS_IT_IS: _train_pair(digits, place, options.epochs)}
    # As few epochs as give enough steps to see: their length is known, they only wait.
    pairs[SLOWED] = _train_pair(digits, place, max(1, min(options.epochs, 20_000 // len(digits))), wait)
    console.print(_losses_table(pairs[AS_IT_IS]))
    console.print(_time_table(pairs, options.wait))
    console.print(_verdict(pairs[AS_IT_IS]))
    equal = all(_are_equal(pair) for pair in pairs.values())
    console.print(
        "[green]Losses and parameters are equal, bit for bit.[/green]"
        if equal
        else "[red]The losses of the two runs differ.[/red]"
    )
    _save(pairs, options.output, console)
    return 0 if equal else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpuloader.demo", description=main.__doc__)
    parser.add_argument(
        "--data",
        default=os.environ.get("GPULOADER_MNIST") or None,
        help="MNIST as gzip JSON, or a folder of IDX files (default: the variable GPULOADER_MNIST, "
        "else the sample in the package)",
    )
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data (default: 3)")
    parser.add_argument("--place", help="cpu, gpu:0, … (default: the best present)")
    parser.add_argument("--wait", type=float, default=2.0, help="ms of disk and of model in the slowed pair")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for what it writes")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.wait < 0:
        parser.error("--epochs must be 1 or more and --wait 0 or more")
    return options


def _train_pair(digits: DigitSet, place: Place, epochs: int, wait: float = 0.0) -> Pair:
    return (
        train(digits, place, epochs=epochs, asynchronous=False, read_wait=wait, compute_wait=wait),
        train(digits, place, epochs=epochs, asynchronous=True, read_wait=wait, compute_wait=wait),
    )


def _are_equal(pair: Pair) -> bool:
    one, other = pair
    return bool((one.losses == other.losses).all()) and all(
        bool((getattr(one.model, name) == getattr(other.model, name)).all()) for name in ("weight", "bias")
    )


def _losses_table(pair: Pair, rows: int = 10) -> Table:
    synchronous, asynchronous = (run.losses for run in pair)
    table = Table(title="Loss", title_justify="left")
    for heading in ("step", "synchronous", "asynchronous", "equal"):
        table.add_column(heading, justify="right")
    last = len(synchronous) - 1
    for step in sorted({round(last * row / (rows - 1)) for row in range(rows)}):
        one, other = synchronous[step], asynchronous[step]
        table.add_row(f"{step}", f"{one:.6f}", f"{other:.6f}", "yes" if one == other else "NO")
    return table


def _time_table(pairs: dict[str, Pair], wait: float) -> Table:
    table = Table(
        title="Where a step's time went, in microseconds",
        title_justify="left",
        caption=f"The slowed pair waits {wait:g} ms in each read and in each step. In an asynchronous run "
        "fetch and stage run beside the rest; wait is what the consumer still sees of them.",
        caption_justify="left",
    )
    table.add_column("")
    for heading in ("fetch", "stage", "wait", "deliver", "compute", "total", "ratio"):
        table.add_column(heading, justify="right")
    for title, pair in pairs.items():
        for name, run in zip(("synchronous", "asynchronous"), pair, strict=True):
            stats, steps = run.stats, len(run.losses)
            times = (stats.fetch, stats.stage, stats.wait, stats.transfer, run.compute, run.seconds)
            ratio = run.seconds / pair[0].seconds
            table.add_row(
                f"{title}: {name}", *(f"{time / steps * 1e6:,.0f}" for time in times), f"{ratio:.2f}"
            )
    return table


def _verdict(pair: Pair) -> str:
    synchronous, asynchronous = pair
    ratio = asynchronous.seconds / synchronous.seconds
    if ratio < 0.95:
        return f"As it is, reading asynchronously takes {ratio:.2f} of the synchronous time."
    steps = len(synchronous.losses)
    return (
        f"As it is, a step takes {synchronous.seconds / steps * 1e6:,.0f} µs: too short to gain from a "
        f"second thread here (ratio {ratio:.2f}). Hiding pays where reading or computing takes longer, as "
        "with the waits."
    )


def _save(pairs: dict[str, Pair], folder: Path, console: Console) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pairs[AS_IT_IS][1].model.save(folder / "parameters.npz")
    synchronous, asynchronous = pairs[AS_IT_IS]
    np.savez(folder / "losses.npz", synchronous=synchronous.losses, asynchronous=asynchronous.losses)
    written = ["parameters.npz", "losses.npz"]
    try:
        draw(
            [(title, one.spans, other.spans) for title, (one, other) in pairs.items()],
            folder / "timeline.png",
        )
        written.append("timeline.png")
    except ImportError:
        console.print("[yellow]No picture: install matplotlib, pip install 'gpuloader\\[demo]'.[/yellow]")
    console.print(f"Wrote {', '.join(written)} to {folder}/")


if __name__ == "__main__":
    sys.exit(main())
