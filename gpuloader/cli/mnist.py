"""``gpuloader mnist``: train on MNIST synchronously, asynchronously, or both, and show the times."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from gpuloader.cli.consoles import fail, open_console, print_whole, read_place
from gpuloader.errors import LoaderError, install_command

if TYPE_CHECKING:
    from rich.console import Console

    from gpuloader.demo.comparison import Plan, Way
    from gpuloader.demo.training import Run
    from gpuloader.devices.places import Place
    from gpuloader.sources.mnist.digits import DigitSet

BATCH_MILLISECONDS = 2.0
"""The default wait when both ways are compared."""
LONGEST_WAIT = 10_000.0


def mnist(
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="GPULOADER_MNIST",
            help="MNIST as gzipped JSON or a folder of IDX files. Default: 5,000 packaged digits.",
        ),
    ] = None,
    place: Annotated[
        str | None,
        typer.Option("--place", metavar="PLACE", help="cpu, gpu:0, … Default: the best available."),
    ] = None,
    synchronous: Annotated[bool, typer.Option("--sync", help="Train once, reading between steps.")] = False,
    asynchronous: Annotated[bool, typer.Option("--async", help="Train once, reading ahead.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Train both ways and compare (default).")] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 3,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="MS",
            help="Milliseconds to add to each read and each step, to simulate a slow disk and a large model. "
            "Default: 2 in a second pair of runs; 0 with --sync or --async.",
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Save the trained parameters, as .npz.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR", help="Write losses, parameters and a timeline to this folder."
        ),
    ] = None,
) -> None:
    """Train a linear model on MNIST in batches of 100; show losses and where time went.

    The exit code is 1 if the two ways differ in losses or parameters by even one bit.
    """
    from gpuloader.demo.comparison import are_equal, group_runs, plan_runs

    way = _choose_way(synchronous, asynchronous, both)
    seconds = _check_wait(wait, BATCH_MILLISECONDS if way is None else 0.0)
    console = open_console()
    device, where, digits = _open(place, data, console)
    _check_targets(save, output)
    source = "the packaged sample" if data is None else data.name
    console.print(
        f"[bold]{len(digits):,} digits[/bold] from {escape(source)}, batches of 100, on [bold]{device}[/bold]"
    )
    runs = _train(plan_runs(way, epochs, seconds, len(digits)), digits, where, console)
    groups = group_runs(runs)
    equal = all(are_equal(list(compared.values())) for compared in groups.values())
    _show(groups, seconds, equal, console)
    _write(groups, save, output, console)
    raise typer.Exit(0 if equal else 1)


def _choose_way(synchronous: bool, asynchronous: bool, both: bool) -> Way | None:
    if synchronous + asynchronous + both > 1:
        fail("--sync, --async and --both exclude each other; choose one")
    return "synchronous" if synchronous else "asynchronous" if asynchronous else None


def _check_wait(wait: float | None, default: float) -> float:
    milliseconds = default if wait is None else wait
    if not 0 <= milliseconds <= LONGEST_WAIT:  # this also rejects NaN
        fail(f"--wait must be from 0 to {LONGEST_WAIT:g} milliseconds, got {wait:g}")
    return milliseconds / 1000


def _check_targets(save: Path | None, output: Path | None) -> None:
    """Fail before the training if its results could not be written."""
    try:
        if save is not None:
            _check_writable(save)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            _check_writable(output / "parameters.npz")
    except OSError as error:
        fail(error)


def _check_writable(path: Path) -> None:
    there = path.exists()
    path.open("ab").close()
    if not there:
        path.unlink()


def _open(place: str | None, data: Path | None, console: Console) -> tuple[str, Place, DigitSet]:
    from gpuloader.devices.opening import default_place, open_device
    from gpuloader.sources import mnist as digits

    try:
        where = read_place(place) or default_place()
        device = open_device(where)
        with console.status("Reading the digits …") if console.is_terminal else nullcontext():
            train = digits.load(data).train
    except (LoaderError, OSError) as error:
        fail(error)
    return device.name, where, train


def _train(plans: list[Plan], digits: DigitSet, place: Place, console: Console) -> dict[Plan, Run]:
    from gpuloader.cli.progress import Bar, show_bars
    from gpuloader.demo.training import BATCH_SIZE, train

    with show_bars(console) as progress:
        bars = {
            plan: Bar(progress, f"{plan.title}, {plan.way}", plan.epochs * -(-len(digits) // BATCH_SIZE))
            for plan in plans
            if progress is not None
        }
        train(digits, place, epochs=1, asynchronous=True)  # warm up caches, memory and the GPU libraries
        return {
            plan: train(
                digits,
                place,
                epochs=plan.epochs,
                asynchronous=plan.way == "asynchronous",
                read_wait=plan.wait,
                compute_wait=plan.wait,
                after_step=bars.get(plan),
            )
            for plan in plans
        }


def _show(groups: dict[str, dict[str, Run]], wait: float, equal: bool, console: Console) -> None:
    from gpuloader.cli.mnist_tables import EXPLANATION, losses_table, times_table, verdict

    first = next(iter(groups.values()))
    for table in (losses_table(first), times_table(groups, wait)):
        console.print()
        print_whole(console, table)
    console.print()
    if len(first) == 1:
        return
    console.print(f"[dim]{EXPLANATION}[/dim]")
    console.print(verdict(groups))
    if equal:
        console.print("[bold green]Losses and parameters are equal, bit for bit.[/bold green]")
    else:
        console.print("[bold red]The two runs have different losses or parameters.[/bold red]")


def _write(
    groups: dict[str, dict[str, Run]], save: Path | None, output: Path | None, console: Console
) -> None:
    from gpuloader.demo.comparison import write_runs

    try:
        if save is not None:
            [*_, last] = next(iter(groups.values())).values()
            last.model.save(save)
            console.print("Saved the parameters to", str(save), markup=False)
        if output is not None:
            written = write_runs(groups, output)
            console.print("Wrote", ", ".join(written), "to", f"{output}/", markup=False)
            if "timeline.png" not in written:
                console.print(
                    f"No timeline.png: it needs matplotlib. Install it: {install_command('demo')}",
                    markup=False,
                )
    except OSError as error:
        fail(error)
