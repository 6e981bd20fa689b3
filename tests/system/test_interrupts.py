"""The end of the interpreter: whatever is alive until then is freed without a word."""

import multiprocessing
import subprocess
import sys

import pytest

from gpuloader.system.processes import start_child, starting
from tests.launching import environment

# Python clears modules in the reverse order of their import. What a module that was imported before this
# package keeps alive is freed when the package's own modules have been cleared.
KEEPER = {"the program": "__main__", "a module that outlives ours": "os"}

PROGRAM = """
import importlib, sys
from gpuloader import DataLoader, PackedList
from gpuloader.staging import Arena

kept = [Arena(4096, shared=True), PackedList("ab")]
for workers, kind, persistent in (
    (1, "process", False), (1, "process", True), (1, "thread", False), (0, "process", False)
):
    loader = DataLoader(
        [(number, str(number)) for number in range(100)], places="cpu", batch_size=4,
        num_workers=workers, worker_type=kind, persistent_workers=persistent,
    )
    epoch = iter(loader)
    kept += loader, epoch, next(epoch)
importlib.import_module(sys.argv[1]).kept = kept
print(len(kept))
"""


@pytest.mark.parametrize("keeper", KEEPER.values(), ids=KEEPER)
def test_loaders_epochs_and_batches_that_live_to_the_end(keeper):
    command = [sys.executable, "-c", PROGRAM, keeper]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environment(), check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "14\n", "")


INTERRUPTED = """
import signal
from gpuloader import DataLoader
from gpuloader.fetch.processes import workers

def close_all(ended, grace, close=workers.close_all):
    close(ended, grace)
    if ended:
        signal.raise_signal(signal.SIGINT)

workers.close_all = close_all
epoch = iter(DataLoader(list(range(100)), places="cpu", batch_size=4, num_workers=1))
print(len(next(epoch)))
"""


def test_a_ctrl_c_while_the_interpreter_exits_is_silent():
    """As the second of two has it, when the first has ended the program."""
    command = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environment(), check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "4\n", "")


def test_multiprocessing_knows_no_process_of_ours():
    """It would end them at the exit of this process, and of all that the program forks from it."""
    with starting():
        child = start_child("spawn", "short", int)
    assert not multiprocessing.active_children()
    assert child.exit_code(30) == 0
    child.end()
    assert child.released
    assert child.exit_code(0) == 0
