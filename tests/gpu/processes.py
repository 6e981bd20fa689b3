"""Programs in processes of their own, whose CUDA contexts and failures stay there."""

import subprocess
import sys
import textwrap


def run_python(*parts):
    """Run the parts of a program in a separate process; return the lines that it prints, errors included."""
    program = "".join(map(textwrap.dedent, parts))
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()
