"""The doctor's trials, each run in its own process: ``python -m gpuloader.doctor.trials NAME``.

The last printed line is the trial's answer as JSON; if the trial failed, it has the key ``problem``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter
from typing import Any

from gpuloader.base.errors import LoaderError, describe_error
from gpuloader.devices.base import Device
from gpuloader.devices.opening import open_device
from gpuloader.devices.places import parse_place
from gpuloader.kernels.compiler import find_nvrtc
from gpuloader.loader.dataset_loader import DataLoader
from gpuloader.staging.arena import Arena

COPIED = 64 << 20
"""Bytes of a copy to a device: enough to make the launch time negligible."""


def describe_gpus() -> dict[str, Any]:
    """Return CuPy's and the driver's view of the machine, and whether NVRTC was found."""
    from gpuloader.devices.cuda import describe_machine

    return {**asdict(describe_machine()), "nvrtc": find_nvrtc() is not None}


def fetch_by_worker() -> dict[str, Any]:
    """Start one worker process through the fork server and make it fetch a few samples."""
    start = perf_counter()
    loader = DataLoader(
        [1, 2, 3, 4], places="cpu", batch_size=2, num_workers=1, start_method="forkserver", timeout=60
    )
    batches = [batch.tolist() for batch in loader]
    if batches != [[1, 2], [3, 4]]:
        raise RuntimeError(f"a worker process returned {batches} instead of [[1, 2], [3, 4]]")
    return {"seconds": perf_counter() - start}


def copy_to_device(name: str, nbytes: str = str(COPIED)) -> dict[str, Any]:
    """Time copies to a device from pageable memory and, if its driver can lock it, page-locked memory."""
    return time_copies(open_device(parse_place(name)), int(nbytes))


def time_copies(device: Device, nbytes: int) -> dict[str, Any]:
    """Return the bandwidth of pageable and page-locked copies in bytes per second, and any refusal to lock.

    A refused or unsupported page-locked copy has bandwidth 0.

    Examples
    --------
    >>> from gpuloader.testing import SimulatedDevice
    >>> found = time_copies(SimulatedDevice("simulated:0"), 1 << 16)
    >>> found["pageable"] > 0, found["refusal"]
    (True, '')
    """
    arena = Arena(nbytes, shared=True)
    found = {"pageable": _bandwidth(device, arena), "pinned": 0.0, "seconds": 0.0, "refusal": ""}
    if device.locker is None:
        return found
    start = perf_counter()
    try:
        device.locker.page_lock(arena.address, nbytes)
    except OSError as error:
        return {**found, "refusal": str(error)}
    seconds = perf_counter() - start
    try:
        return {**found, "pinned": _bandwidth(device, arena), "seconds": seconds}
    finally:
        device.locker.page_unlocker(arena.address, arena)()


def _bandwidth(device: Device, source: Arena, repeats: int = 4) -> float:
    target, stream, event = device.alloc(source.nbytes), device.stream(), device.event()
    best = 0.0
    for _ in range(repeats):
        start = perf_counter()
        device.copy_async(target, source, source.nbytes, stream)
        device.record(event, stream)
        device.synchronize(event)
        best = max(best, source.nbytes / (perf_counter() - start))
    return best


TRIALS: dict[str, Callable[..., dict[str, Any]]] = {
    "gpus": describe_gpus,
    "worker": fetch_by_worker,
    "copies": copy_to_device,
}


def main() -> None:
    """Run the trial named on the command line with its arguments; print its answer or its problem."""
    name, *arguments = sys.argv[1:]
    try:
        answer = TRIALS[name](*arguments)
    except LoaderError as error:
        answer = {"problem": str(error)}
    except Exception as error:
        answer = {"problem": describe_error(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
