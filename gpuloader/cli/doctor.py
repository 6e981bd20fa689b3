"""``gpuloader doctor``: check whether loaders work on this machine."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Annotated

import typer

from gpuloader.cli.consoles import open_console, read_place


def doctor(
    place: Annotated[
        str | None,
        typer.Option("--place", metavar="PLACE", help="Where batches should land: cpu, gpu:0, gpu_pinned, …"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the findings, as JSON.")] = False,
) -> None:
    """Check whether loaders work on this machine, and say what to fix.

    The exit code is 1 if a loader would fail here, else 0.
    """
    from gpuloader.doctor.examination import examine

    wanted = read_place(place)
    if as_json:
        report = examine(wanted)
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        from gpuloader.cli.report import show_report

        console = open_console()
        with console.status("Checking …") if console.is_terminal else nullcontext() as status:
            report = examine(
                wanted,
                tell=lambda what: status.update(f"Checking {what} …") if status is not None else None,
            )
        console.print(show_report(report, ascii_only=console.options.ascii_only))
    raise typer.Exit(0 if report.works else 1)
