"""The command line's output: results on standard output, failures on standard error in one red line."""

from __future__ import annotations

import os
from typing import NoReturn

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gpuloader.devices.places import Place, parse_place
from gpuloader.errors import LoaderError, describe_error

NARROWEST, WIDEST = 40, 100
"""Columns. Findings do not fit in fewer, and longer lines are hard to follow."""


def open_console() -> Console:
    """Return a console on the current standard output."""
    console = Console(highlight=False)
    console.width = max(NARROWEST, min(console.width, WIDEST))
    return console


def titled_table(title: str, *, show_edge: bool = True) -> Table:
    """Return an empty table in the style of all tables of numbers."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        border_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=show_edge,
        pad_edge=False,
    )


def print_whole(console: Console, table: Table) -> None:
    """Print a table without cutting any number; a terminal that is too narrow wraps its lines."""
    width = console.width
    console.width = max(width, Measurement.get(console, console.options.update_width(WIDEST), table).maximum)
    try:
        console.print(table)
    finally:
        console.width = width


def say_failure(message: str) -> None:
    """Write one red line to standard error."""
    line = Text(" ".join(message.split()), style="red")
    Console(stderr=True, highlight=False, soft_wrap=True).print(line)


def fail(error: BaseException | str) -> NoReturn:
    """Print what went wrong and end the command with exit code 2."""
    if isinstance(error, OSError) and error.strerror:
        name = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        error = f"{name}{error.strerror}"
    elif isinstance(error, LoaderError):
        error = str(error)
    elif isinstance(error, BaseException):
        error = describe_error(error)
    say_failure(error)
    raise typer.Exit(2)


def read_place(text: str | None) -> Place | None:
    """Parse the place given to a command; end the command if it is not a place."""
    if text is None:
        return None
    try:
        return parse_place(text)
    except LoaderError as error:
        fail(error)
