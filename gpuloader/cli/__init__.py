"""The command line: ``gpuloader mnist``, ``gpuloader doctor`` and ``gpuloader bench``.

Nothing but this file may be imported without typer and rich, which the extra ``cli`` installs.
"""

from __future__ import annotations

import io
import sys

from gpuloader.base.errors import missing_package

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it."""


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where the locale has no µ, a question mark will do
            stream.reconfigure(errors="replace")
    try:
        try:
            from gpuloader.cli.app import app
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in ("typer", "rich"):
                raise
            sys.exit(_say(str(missing_package("the command line", package, "cli")), 2))
        app()
    except KeyboardInterrupt:
        sys.exit(_say("Interrupted.", INTERRUPTED))


def _say(line: str, code: int) -> int:
    sys.stderr.write(f"{line}\n")
    return code
