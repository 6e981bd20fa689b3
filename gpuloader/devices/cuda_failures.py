"""Translates the errors of CUDA and CuPy into the package's own; imports neither."""

from __future__ import annotations

from typing import Any

from gpuloader.errors import LoaderError, StagingMemoryError, install_command

CAPTURED = range(900, 909)
"""CUDA's status codes for calls that are not allowed while a stream is being captured."""


def translate(cupy: Any, index: int, error: BaseException) -> LoaderError | None:
    """Return an error of CUDA or CuPy as the package's own; return None for any other error."""
    cuda = cupy.cuda
    if isinstance(error, cuda.runtime.CUDARuntimeError | cuda.driver.CUDADriverError):
        return tell_failure(index, error)  # kernel launches raise the driver's error, not the runtime's
    if isinstance(error, cuda.memory.OutOfMemoryError):
        return StagingMemoryError(
            f"CuPy's memory pool on gpu:{index} is too small for a kernel: {error}; lower the batch size, "
            "or free the pool with cupy.get_default_memory_pool().free_all_blocks()"
        )
    if isinstance(error, cuda.compiler.CompileException):
        return LoaderError(f"cannot compile a kernel for gpu:{index}: {error}")
    if isinstance(error, RuntimeError) and not isinstance(error, LoaderError) and "libnvrtc" in str(error):
        return LoaderError(
            f"cannot compile a kernel for gpu:{index}: CUDA's compiler is missing: {error}; install it with "
            f"{install_command('cuda13')} (or [cuda12] for an older driver)"
        )
    return None


def tell_failure(index: int, error: Any) -> LoaderError:
    """Return the package's error for one with a CUDA status."""
    if error.status in CAPTURED:
        return tell_capture(f"gpu:{index}", str(error))
    return LoaderError(f"gpu:{index} failed: {error}; an earlier kernel or copy may be the cause")


def tell_capture(name: str, found: str) -> LoaderError:
    """Return the error for a batch requested from the device `name` while a stream is being captured.

    >>> print(tell_capture("gpu:0", "its stream is being captured"))  # doctest: +ELLIPSIS
    gpu:0: its stream is being captured; a loader cannot deliver a batch during a graph capture: ...
    """
    return LoaderError(
        f"{name}: {found}; a loader cannot deliver a batch during a graph capture: fetch the batch "
        "before, and capture over it with static=True, or copy it into the graph's input"
    )


def explain_absence(cupy: Any) -> str:
    """Return why CuPy finds no usable device, and what to do about it."""
    built, known = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.runtime.driverGetVersion()
    if known == 0:
        found = "no NVIDIA driver was found"
    elif built // 1000 > known // 1000:
        instead = f"{install_command('cuda12')} instead" if known >= 12000 else "update the driver"
        return (
            f"CuPy {cupy.__version__} is built for CUDA {_version(built)}, but the driver supports at most "
            f"{_version(known)}; {instead}"
        )
    else:
        found = f"the driver supports CUDA {_version(known)} but shows no usable device"
    return f"{found} (CuPy {cupy.__version__} is installed); check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
