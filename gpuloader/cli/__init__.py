"""The command ``gpuloader``, and what its commands share.

Results go to standard output as plain text; a failure is one line on standard error. The exit code is 0 if
all is well, 1 if a check fails, 2 for a mistake in the command line or a file that cannot be read or written,
and 130 after Ctrl-C. Each command is a file with `add_options` and `run`.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpuloader.errors import LoaderError, describe_error

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130

EXAMPLES = """examples:
  gpuloader doctor                 check whether loaders work on this machine
  gpuloader doctor --place gpu:0   and on this GPU
  gpuloader mnist                  train with and without reading ahead
  gpuloader mnist --async --epochs 5 --save digits.npz
  gpuloader bench --case images    time loaders on this machine
  gpuloader convert photos out     write a folder of images as shards
  gpuloader show photos            draw augmented images, masks and boxes
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    # A stream that was closed, as with `>&-`, is None. A file also takes its number, or the next one would.
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # print a question mark if the locale has no µ
            stream.reconfigure(errors="replace")
    try:
        options = make_parser().parse_args(arguments)
        code = options.run(options)
        sys.stdout.flush()  # here, where a failure can still be reported
    except KeyboardInterrupt:
        sys.stdout.flush()
        sys.stderr.write("Interrupted.\n")
        code = INTERRUPTED
    except OSError as error:
        # Python flushes the output again when it exits, and would print a traceback if that failed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            fail(error)
        code = FAILED  # nobody reads the output, as in `gpuloader doctor | head -1`
    sys.exit(code)


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Report the mistake and exit."""
        fail(message)

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike argparse, raise `OSError` if it cannot be written."""
        print(self.format_help(), end="", file=file, flush=True)


def make_parser() -> Parser:
    """Return the parser of all commands; `run` of the parsed options returns the exit code."""
    # Imported here, because these modules import this one. They import what they need when they run, so that
    # the help appears immediately.
    from gpuloader.cli import bench, conversion, demonstration, doctor, preview

    # An abbreviation that works today would break when another option with the same beginning is added.
    style: Any = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser(
        prog="gpuloader", description="A data loader that keeps a GPU fed.", epilog=EXAMPLES, **style
    )
    parser.add_argument("--version", action="store_true", help="show the version")
    parser.set_defaults(run=lambda options: show_version() if options.version else parser.print_help())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    known = {"mnist": demonstration, "doctor": doctor, "bench": bench, "convert": conversion, "show": preview}
    for name, module in known.items():
        text = inspect.cleandoc(module.run.__doc__ or "")
        command = commands.add_parser(name, help=text.partition(".")[0], description=text, **style)
        module.add_options(command)
        command.set_defaults(run=module.run)
    return parser


def show_version() -> None:
    """Print the version of the installed distribution."""
    from importlib import metadata  # slower to import than the rest of this module

    try:
        version = metadata.version("gpuloader")
    except metadata.PackageNotFoundError:
        version = "from a folder, not installed"
    print(f"gpuloader {version}")


def fail(error: BaseException | str) -> NoReturn:
    """Write one line to standard error and exit with the code of a mistake."""
    # Python's own text for an OSError includes an error number, which helps nobody.
    if isinstance(error, OSError) and error.strerror:
        name = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        error = f"{name}{error.strerror}"
    elif isinstance(error, BaseException):
        error = str(error) if isinstance(error, LoaderError) else describe_error(error)
    sys.stderr.write(f"{' '.join(error.split())}\n")
    sys.exit(MISTAKE)


def parse_place(text: str) -> Any:
    """Return the place that an option names."""
    from gpuloader.devices import places

    try:
        return places.parse_place(text)
    except LoaderError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_count(text: str, least: int = 1) -> int:
    """Return an option's number, which is at least `least`.

    >>> parse_count("3")
    3
    """
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be {least} or more, got {text!r}")
    return int(text)


def check_writable(path: Path) -> None:
    """Raise `OSError` if the file cannot be written; leave no file behind if there was none."""
    # Tested by appending nothing: os.access says yes to root even below /proc, where nobody can create files.
    is_new = not path.exists()
    path.open("ab").close()
    if is_new:
        path.unlink()


def show_status(text: str) -> None:
    """Replace the status line on a terminal; an empty text erases it. Elsewhere, show nothing."""
    # On standard error, so that a pipe from standard output gets results alone.
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines, the first column aligned left and the others right.

    >>> print(align([("", "median"), ("ours", "8.5"), ("theirs", "17,683")]))
            median
    ours       8.5
    theirs  17,683
    """
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    line = "  ".join([f"{{:<{first}}}", *(f"{{:>{width}}}" for width in others)])
    return "\n".join(line.format(*row).rstrip() for row in rows)
