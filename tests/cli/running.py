"""Running the command line, in this process or in another one."""

import contextlib
import io
import subprocess
import sys
from types import SimpleNamespace

from gpuloader.cli import main


def invoke(*arguments):
    """Run ``gpuloader`` with these arguments, and return its exit code and what it has printed."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
    return SimpleNamespace(exit_code=code, stdout=output.getvalue(), stderr=errors.getvalue())


def run(*arguments, **options):
    """Run the command line in a separate process."""
    captured = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 240}
    return subprocess.run([sys.executable, *arguments], check=False, **captured | options)
