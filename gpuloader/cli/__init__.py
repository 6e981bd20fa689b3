"""The command line: ``gpuloader mnist``, ``gpuloader doctor`` and ``gpuloader bench``.

Only this file can be imported without typer and rich, which the extra ``cli`` installs.
"""

from __future__ import annotations

import io
import sys

from gpuloader.errors import missing_package

INTERRUPTED = 130
"""Exit code after Ctrl-C, by the shells' convention."""


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print a question mark if the locale has no µ
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
