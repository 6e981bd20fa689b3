"""What is left to the interpreter when it exits."""

import multiprocessing

from gpuloader.base import exiting
from gpuloader.base.processes import close_process


def test_a_process_is_not_closed_while_multiprocessing_joins_it_at_exit(monkeypatch):
    """A closed one makes the joining fail, and that prints a traceback."""
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    monkeypatch.setattr(exiting, "_exiting", True)
    close_process(process)
    assert process.exitcode == 0  # a closed process has none, and raises
    monkeypatch.undo()
    close_process(process)
