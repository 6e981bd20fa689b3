"""What the fork server loads before it forks workers; imported there alone."""

from __future__ import annotations

import signal

import gpuloader.fetch.processes.worker  # noqa: F401


def accept_interrupts() -> None:
    """Be open to SIGINT again, and forget those that came while the server was loading.

    It was started with them blocked, see `starting`: an interrupt of the terminal's whole process group
    would otherwise have it print the traceback of some import.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, handler)


accept_interrupts()
