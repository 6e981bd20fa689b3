"""Running tests over a copy of the project, and ending whatever they leave."""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.processes import parents

ROOT = Path(__file__).parents[2]
UNNEEDED = (".git", ".*cache*", ".venv*", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist")
MEMORY = 12 << 30
"""Bytes of address space for each process of the tests: a mutant may ask for any number of samples."""
PLUGINS = ("-p", "_hypothesis_pytestplugin", "-p", "pytest_timeout", "-p", "no:cacheprovider")
"""The plugins that the tests need. Loading those of all packages would take longer than most tests."""
_BECOME_SUBREAPER, _DIE_WITH_PARENT = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG


@contextmanager
def copied_project() -> Iterator[Path]:
    """Copy the working tree to a temporary folder; nothing of it, and no process, is left at the end.

    Ctrl-C waits until that is done.
    """
    _control(_BECOME_SUBREAPER, 1)
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        tree = folder / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*UNNEEDED))
        (folder / "tmp").mkdir()
        yield tree
    finally:
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_children()
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGINT, heard)


def run_tests(
    python: Path, tree: Path, tests: Sequence[str], limit: float, *, is_first: bool = False
) -> int | None:
    """Run tests in the copied project until one fails; return pytest's exit status, None after the limit.

    Their output is in the file `output` next to the tree. No process that they started is left. The first run
    of a module's tests, without a change, writes the bytecode that later runs load.
    """
    command = [python, "-m", "pytest", "-x", "-q", *PLUGINS, "--hypothesis-profile=mutants"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "TMPDIR": str(tree.parent / "tmp"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    if not is_first:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    with (tree.parent / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, *tests],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a Ctrl-C comes here alone
            preexec_fn=_confine,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
            end_children()


def replace_module(path: Path, source: str) -> None:
    """Write a module, and remove its bytecode: it would count as current in the second it was written in."""
    path.write_text(source)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def end_children() -> None:
    """Kill every process below this one; orphans among them have become its own children."""
    while children := [pid for pid, parent in parents().items() if parent == os.getpid()]:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _confine() -> None:
    """Prepare the process of the tests: it ends with this one, and cannot take all memory."""
    _control(_DIE_WITH_PARENT, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _control(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
