"""The commands and what they share: how a mistake is told, how Ctrl-C ends, the version."""

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

HELP = """The loader that keeps a GPU fed.

\b
[bold]Examples[/bold]
  gpuloader doctor                 does everything a loader needs work here?
  gpuloader doctor --place gpu:0   and on this GPU?
  gpuloader mnist                  train with and without reading ahead
  gpuloader mnist --async --epochs 5 --save digits.npz
  gpuloader bench --peer torch     our loader beside another
"""


class Commands(TyperGroup):
    """Tells what was wrong with a command in one red line, and ends quietly on Ctrl-C."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command and, unless told otherwise by ``standalone_mode``, exit with its code."""
        exits = options.pop("standalone_mode", True)
        run: Any = super().main
        try:
            code = run(*arguments, **options, standalone_mode=False)
        except Exception as error:
            # What typer raises for a wrong command line; older and newer ones name its class differently.
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
        from importlib import metadata  # takes longer to import than most of what is here

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
    """Show the help where no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
