"""Running the command line in this process."""

import contextlib
import io
from dataclasses import dataclass

from gpuloader.cli import main


@dataclass
class Shown:
    """What a command has printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str


def invoke(*arguments):
    """Run ``gpuloader`` with these arguments."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main(arguments)
        except SystemExit as ended:
            return Shown(ended.code or 0, output.getvalue(), errors.getvalue())
