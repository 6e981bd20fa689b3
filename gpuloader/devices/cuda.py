"""What CUDA offers on this machine; apart from the kernels, the only module of the package that imports CuPy.

`cuda_device.py` is the device itself. It is imported only if a GPU can be used, so a program on a machine
without one only pays for this module.
"""

from __future__ import annotations

from typing import Any

from gpuloader.errors import PlaceError, describe_error, install_command, warn
from gpuloader.system.driver import find_cuda_version, show_cuda
from gpuloader.system.platforms import after_fork

_import_error = _cure = ""
_is_broken = False  # whether CuPy is installed but cannot be imported
try:
    import cupy as cupy
except Exception as error:  # importing CuPy also creates a folder and imports other packages
    cupy = None
    _import_error = str(error) if isinstance(error, ImportError) else describe_error(error)
    _is_broken = getattr(error, "name", None) != "cupy"
    if isinstance(error, OSError):
        _cure = "set CUPY_CACHE_DIR to a folder that this process may write to"

forked = False
"""Whether this process is a forked child, in which nothing of CUDA may be called."""


def _note_fork() -> None:
    # The driver's state does not survive a fork. In the child, every call fails with status 3, even in the
    # destructors of inherited objects. CUDA has no call to detect this.
    global forked
    forked = True


after_fork(_note_fork)


def require_cuda(index: int) -> int:
    """Return the number of visible GPUs, after checking that the GPU with this index can be used.

    Raises
    ------
    PlaceError
        CuPy, the driver or the device is missing; the message says which one and what to do.
    """
    if cupy is None:
        raise PlaceError(f"gpu:{index} needs CuPy, which is not importable {_advise()}, or use CPUPlace()")
    if forked:
        refuse_fork(index)
    # Asked first because, unlike the other calls, it does not raise without a driver. A stream that CuPy
    # fails to create prints noise when it is collected.
    if not cupy.cuda.is_available():
        runtime = cupy.cuda.runtime
        built, known = runtime.runtimeGetVersion(), runtime.driverGetVersion()
        installed = f"(CuPy {cupy.__version__} is installed); check nvidia-smi and CUDA_VISIBLE_DEVICES"
        if known == 0:
            why = f"no NVIDIA driver was found {installed}"
        # Any driver runs what toolkits of the same major version have built, and no driver runs newer ones.
        elif built // 1000 > known // 1000:
            instead = f"{install_command('cuda12')} instead" if known >= 12000 else "update the driver"
            why = (
                f"CuPy {cupy.__version__} is built for CUDA {show_cuda(built)}, but the driver supports at "
                f"most {show_cuda(known)}; {instead}"
            )
        else:
            why = f"the driver supports CUDA {show_cuda(known)} but shows no usable device {installed}"
        raise PlaceError(f"gpu:{index} is not available: {why}, or use CPUPlace()")
    count: int = cupy.cuda.runtime.getDeviceCount()
    if index >= count:
        visible = ", ".join(f"gpu:{number}" for number in range(count))
        raise PlaceError(f"gpu:{index} is not available: this process sees {count} ({visible})")
    return count


def _advise() -> str:
    cure = _cure or f"install it with {install_command('cuda13')} (or [cuda12] for an older driver)"
    return f"({_import_error}); {cure}"


def warn_if_broken() -> None:
    """Warn once if CuPy is installed but cannot be imported, so that batches go to the CPU."""
    global _is_broken
    if _is_broken:
        _is_broken = False
        warn(
            f"batches are delivered on the CPU, because CuPy is not importable {_advise()}, or pass "
            "places='cpu'",
            RuntimeWarning,
        )


def refuse_fork(index: int) -> None:
    """Raise `PlaceError`: this process was forked."""
    raise PlaceError(f"gpu:{index} cannot be used in a forked process: CUDA does not survive a fork")


def current_index() -> int:
    """Return the index of the calling thread's current device; this creates no context."""
    return int(cupy.cuda.runtime.getDevice())


def describe_machine() -> dict[str, Any]:
    """Return what this machine has; anything missing or failing is reported, never raised.

    ``cupy`` is its version, None if it cannot be imported; ``runtime`` and ``driver`` are the CUDA versions
    that CuPy was built for and that the driver supports, as 1000 major + 10 minor, or 0; ``devices`` has
    name, bytes of memory and compute capability of each GPU, and ``buses`` its position on the PCI bus;
    ``failure`` says why there are none, and ``cure`` what makes CuPy importable, other than installing it.
    """
    found: dict[str, Any] = {"cupy": None, "runtime": 0, "driver": find_cuda_version(), "devices": ()}
    found |= {"buses": (), "failure": "", "cure": ""}
    if cupy is None:
        return found | {"failure": _import_error, "cure": _cure}
    found["cupy"] = cupy.__version__
    try:
        runtime = cupy.cuda.runtime
        found["runtime"] = runtime.runtimeGetVersion()
        properties = [runtime.getDeviceProperties(index) for index in range(runtime.getDeviceCount())]
        buses = tuple(runtime.deviceGetPCIBusId(index) for index in range(len(properties)))
    except Exception as error:  # from CUDA, or because CuPy cannot find one of its libraries
        return found | {"failure": describe_error(error)}
    devices = tuple(
        (one["name"].decode(), int(one["totalGlobalMem"]), f"{one['major']}.{one['minor']}")
        for one in properties
    )
    return found | {"devices": devices, "buses": buses}
