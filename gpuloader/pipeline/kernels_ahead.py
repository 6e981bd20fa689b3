"""Compiling what the first batches of a loader will launch, while they are still being fetched."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

from gpuloader.base.errors import LoaderError
from gpuloader.base.processes import StartedThread, start_thread
from gpuloader.devices.base import Device
from gpuloader.transforms.program import Program


class KernelsAhead:
    """Compiles the kernels of a loader's first program, in a thread that ends with the first step.

    Later programs launch the same kernels, with few exceptions. Launching waits for a kernel that is being
    compiled, and compiles any other. So it raises the errors, and whatever goes wrong here is dropped.

    Parameters
    ----------
    devices : sequence of Device
        The devices on which the program will run.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = list({id(device): device for device in devices if not device.direct}.values())
        self._process = os.getpid()
        self._beginning = threading.Lock()
        self._has_begun = False
        self._stop = threading.Event()
        self._thread: StartedThread | None = None

    def begin(self, program: Program) -> None:
        """Begin to compile what a program launches; only the first call does. Any thread may call it."""
        with self._beginning:
            if self._has_begun or not self._devices or os.getpid() != self._process:
                return
            self._has_begun = True
            with suppress(LoaderError):  # the system starts no more threads
                arguments = program, self._devices, self._stop
                self._thread = start_thread("gpuloader-compiler", _compile, *arguments)

    def finish(self) -> None:
        """Compile nothing more ahead; wait for the kernel that is being compiled."""
        with self._beginning:
            self._has_begun = True
            thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._process:
            self._stop.set()
            if not thread.is_current:  # which may have collected an epoch as garbage
                thread.join()


def _compile(program: Program, devices: Sequence[Device], stop: threading.Event) -> None:
    for device in devices:
        with suppress(Exception):  # launching raises it
            device.compile(program, stop.is_set)
