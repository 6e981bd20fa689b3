"""What CUDA and CuPy raise, in the package's words; imports neither."""

from __future__ import annotations

from typing import Any

from gpuloader.base.errors import LoaderError, StagingMemoryError

CAPTURED = range(900, 909)
"""What CUDA says of calls that may not be made while a stream is captured."""


def translate(cupy: Any, index: int, error: BaseException) -> LoaderError | None:
    """Return what went wrong on a device as an error of the package; None if it is not CUDA's or CuPy's."""
    cuda = cupy.cuda
    if isinstance(error, cuda.runtime.CUDARuntimeError | cuda.driver.CUDADriverError):
        return tell_failure(index, error)  # of the runtime, or of the driver, which launches kernels
    if isinstance(error, cuda.memory.OutOfMemoryError):
        return StagingMemoryError(
            f"CuPy's pool on gpu:{index} has too little memory for a kernel: {error}; lower the batch size, "
            "or free the pool with cupy.get_default_memory_pool().free_all_blocks()"
        )
    if isinstance(error, cuda.compiler.CompileException):
        return LoaderError(f"a kernel cannot be compiled for gpu:{index}: {error}")
    if isinstance(error, RuntimeError) and "libnvrtc" in str(error):
        return LoaderError(
            f"a kernel cannot be compiled for gpu:{index}, CUDA's compiler is missing: {error}; install it "
            "with pip install 'gpuloader[cuda13]' (or [cuda12] for an older driver)"
        )
    return None


def tell_failure(index: int, error: Any) -> LoaderError:
    """Return an error that has a CUDA status."""
    if error.status in CAPTURED:
        return tell_capture(index, str(error))
    return LoaderError(f"gpu:{index} failed: {error}; an earlier kernel or copy may be the cause")


def tell_capture(index: int, found: str) -> LoaderError:
    """Return what to do about a stream that is being captured.

    >>> print(tell_capture(0, "its stream is being captured"))  # doctest: +ELLIPSIS
    gpu:0: its stream is being captured; a loader cannot be asked for a batch while a graph is captured: ...
    """
    return LoaderError(
        f"gpu:{index}: {found}; a loader cannot be asked for a batch while a graph is captured: ask before, "
        "and copy the batch into the graph's own input"
    )


def explain_absence(cupy: Any) -> str:
    """Return why CuPy finds no device, and what to do about it."""
    built, known = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.runtime.driverGetVersion()
    if known == 0:
        found = "no NVIDIA driver was found"
    elif built // 1000 > known // 1000:
        instead = "pip install 'gpuloader[cuda12]' in its place" if known >= 12000 else "update the driver"
        return (
            f"CuPy {cupy.__version__} is built for CUDA {_version(built)} and the driver knows "
            f"{_version(known)} at most; {instead}"
        )
    else:
        found = f"the driver knows CUDA {_version(known)} but shows no usable device"
    return f"{found} (CuPy {cupy.__version__} is installed); check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
