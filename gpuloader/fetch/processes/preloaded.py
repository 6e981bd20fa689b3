"""Worker's side: the module that the fork server loads before it forks workers; imported only there."""

from __future__ import annotations

import signal

import gpuloader.fetch.processes.worker  # noqa: F401


def accept_interrupts() -> None:
    """Unblock SIGINT, and discard interrupts that arrived while the server was loading.

    `starting` starts the server with SIGINT blocked. Otherwise Ctrl-C, which reaches every process of the
    terminal, would make the server print the traceback of an interrupted import.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, handler)


accept_interrupts()
