"""What may hang or crash, tried in a separate process: ``python -m gpuloader.doctor.trials NAME``.

The last printed line is the trial's answer as JSON; if the trial failed, it has the key ``problem``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from gpuloader.api.loader import DataLoader
from gpuloader.devices.base import Device
from gpuloader.devices.places import open_device, parse_place
from gpuloader.errors import LoaderError, describe_error
from gpuloader.kernels.compiler import find_nvrtc
from gpuloader.staging import Arena
from gpuloader.system.platforms import kill_session
from gpuloader.system.threads import deferred_interrupt

TRIAL_SECONDS = 60.0
# Bytes of a copy to a device: enough to make the launch time negligible.
COPIED = 64 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial's answer; or, if the trial failed, the problem in one line and no answer."""

    answer: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


# The type of `attempt` and its stand-ins: (trial, *arguments, seconds=...) -> Outcome.
Attempt = Callable[..., Outcome]


def attempt(trial: str, *arguments: str, seconds: float, module: str = "gpuloader.doctor.trials") -> Outcome:
    """Run a trial of `module` in a new process; return within about `seconds`, whatever the trial does."""
    command = [sys.executable, "-P", "-m", module, trial, *arguments]
    # Pass on this process's search path: it may find the checkout only through the working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Files, not pipes: a surviving grandchild would keep a pipe open, and reading it would never end.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process: subprocess.Popen[bytes] | None = None
        try:
            with deferred_interrupt():  # so that none comes between the start and the name
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,  # a group of its own, so that its workers are killed with it
                )
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Outcome(problem=f"no answer within {seconds:g} s")
        finally:
            if process is not None and process.returncode is None:
                kill_session(process.pid)
                # A process that is stuck in a driver cannot be killed before its system call returns.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return _read(status, *texts)


def _read(status: int, output: str, errors: str) -> Outcome:
    if status < 0:
        return Outcome(problem=f"killed by {signal.Signals(-status).name}")
    # CUDA's libraries print their own greetings and warnings, so only the last line counts.
    try:
        answer = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict):
        said = [line.strip() for line in errors.splitlines() if line.strip()]
        return Outcome(problem=said[-1] if said else f"exit status {status} without an answer")
    if "problem" in answer:
        return Outcome(problem=" ".join(answer["problem"].split()))
    return Outcome(answer)


def describe_gpus() -> dict[str, Any]:
    """Return CuPy's and the driver's view of the machine, and whether NVRTC was found."""
    from gpuloader.devices.cuda import describe_machine

    return describe_machine() | {"nvrtc": find_nvrtc() is not None}


def fetch_by_worker() -> dict[str, Any]:
    """Start one worker process through the fork server and make it fetch a few samples."""
    start = perf_counter()
    # The start method that asks most of a sandbox: sockets that pass descriptors, and a server process.
    loader = DataLoader(
        [1, 2, 3, 4], places="cpu", batch_size=2, num_workers=1, start_method="forkserver", timeout=60
    )
    batches = [batch.tolist() for batch in loader]
    if batches != [[1, 2], [3, 4]]:
        raise RuntimeError(f"a worker process returned {batches} instead of [[1, 2], [3, 4]]")
    return {"seconds": perf_counter() - start}


def copy_to_device(name: str, nbytes: str = str(COPIED)) -> dict[str, Any]:
    """Time copies to the device of a place; command-line arguments are text."""
    return time_copies(open_device(parse_place(name)), int(nbytes))


def time_copies(device: Device, nbytes: int) -> dict[str, Any]:
    """Return the bandwidth of pageable and pinned copies in bytes per second, and any refusal to pin.

    A refused or unsupported pinned copy has bandwidth 0.

    >>> from gpuloader.testing import SimulatedDevice
    >>> found = time_copies(SimulatedDevice("simulated:0"), 1 << 16)
    >>> found["pageable"] > 0, found["refusal"]
    (True, '')
    """
    # The same kind of memory as for slots, so that pinning meets the same limits as in a loader.
    arena = Arena(nbytes, shared=True)
    found = {"pageable": _bandwidth(device, arena), "pinned": 0.0, "seconds": 0.0, "refusal": ""}
    if device.locker is None:
        return found
    start = perf_counter()
    try:
        device.locker.page_lock(arena.address, nbytes)
    except OSError as error:
        # A refusal is an answer: a loader then copies from pageable memory.
        return {**found, "refusal": str(error)}
    seconds = perf_counter() - start
    try:
        return {**found, "pinned": _bandwidth(device, arena), "seconds": seconds}
    finally:
        device.locker.page_unlocker(arena.address, arena)()


def _bandwidth(device: Device, source: Arena) -> float:
    target, stream, event = device.alloc(source.nbytes), device.stream(), device.event()

    def copy() -> None:
        device.copy_async(target, source, source.nbytes, stream)
        device.record(event, stream)
        device.synchronize(event)

    return best_bandwidth(copy, source.nbytes)


def best_bandwidth(copy: Callable[[], object], nbytes: int) -> float:
    """Return the bytes per second of the fastest of a few copies."""
    # The first copy also sets up a device's context, and time taken by other programs says nothing about the
    # machine.
    best = 0.0
    for _ in range(4):
        start = perf_counter()
        copy()
        best = max(best, nbytes / (perf_counter() - start))
    return best


def answer(trial: Callable[..., dict[str, Any]], *arguments: str) -> None:
    """Run a trial, and print its answer for the process that attempts it."""
    try:
        found = trial(*arguments)
    except Exception as error:
        found = {"problem": str(error) if isinstance(error, LoaderError) else describe_error(error)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    trials: dict[str, Callable[..., dict[str, Any]]]
    trials = {"gpus": describe_gpus, "worker": fetch_by_worker, "copies": copy_to_device}
    answer(trials[sys.argv[1]], *sys.argv[2:])
