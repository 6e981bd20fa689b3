"""The commands and what they share: reporting mistakes, ending on Ctrl-C, the version."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpuloader.cli import INTERRUPTED
from gpuloader.cli.bench import bench
from gpuloader.cli.consoles import say_failure
from gpuloader.cli.doctor import doctor
from gpuloader.cli.mnist import mnist

HELP = """A data loader that keeps a GPU fed.

\b
[bold]Examples[/bold]
  gpuloader doctor                 check whether loaders work on this machine
  gpuloader doctor --place gpu:0   and on this GPU
  gpuloader mnist                  train with and without reading ahead
  gpuloader mnist --async --epochs 5 --save digits.npz
  gpuloader bench --peer torch     compare loading times with torch
"""


class Commands(TyperGroup):
    """A group of commands that reports a mistake in one red line and ends quietly on Ctrl-C."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command and exit with its code, unless ``standalone_mode`` is False."""
        exits = options.pop("standalone_mode", True)
        run: Any = super().main
        try:
            code = run(*arguments, **options, standalone_mode=False)
        except Exception as error:
            # typer raises this for a wrong command line; the name of its class depends on typer's version.
            if not exits or not hasattr(error, "format_message"):
                raise
            say_failure(error.format_message())
            sys.exit(getattr(error, "exit_code", 2))
        if code == INTERRUPTED:
            say_failure("Interrupted.")
        if exits:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run a command within its context."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("mnist")(mnist)
app.command("doctor")(doctor)
app.command("bench")(bench)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # slower to import than the rest of this module

        try:
            version = metadata.version("gpuloader")
        except metadata.PackageNotFoundError:
            version = "from a folder, not installed"
        typer.echo(f"gpuloader {version}")
        raise typer.Exit


@app.callback(invoke_without_command=True, help=HELP)
def gpuloader(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Show the help if no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
