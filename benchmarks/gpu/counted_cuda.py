"""CuPy with a CUDA that does nothing but count its calls, to measure what the host does for a batch."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any
from unittest import mock

import numpy as np


class CountedRuntime:
    """CUDA's runtime, whose calls return at once; every stream is idle and every event is reached.

    Attributes
    ----------
    calls : int
        How many calls there were, kernel launches and context switches included.
    """

    def __init__(self, errors: type[Exception]) -> None:
        self.calls = 0
        self.CUDARuntimeError = errors
        self._memory: dict[int, Any] = {}
        results: dict[str, Any] = {"getDevice": 0, "eventQuery": 0, "ctxGetCurrent": 1}
        results |= dict.fromkeys(
            ("eventRecord", "streamWaitEvent", "memcpyAsync", "eventSynchronize", "setDevice", "hostRegister")
        )
        results |= dict.fromkeys(
            ("hostUnregister", "ctxSetCurrent", "launch", "streamDestroy", "eventDestroy")
        )
        results |= {"streamIsCapturing": False, "eventElapsedTime": 0.001, "getDeviceCount": 1}
        results |= {"pointerGetAttributes": SimpleNamespace(type=0)}
        for name, result in results.items():
            setattr(self, name, self._counted(result))

    def _counted(self, result: Any) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            self.calls += 1
            return result

        return call

    def malloc(self, nbytes: int) -> int:
        """Return the address of memory that nobody writes to."""
        self.calls += 1
        memory = np.empty(nbytes, np.uint8)
        self._memory[memory.ctypes.data] = memory
        return memory.ctypes.data

    def free(self, address: int) -> None:
        """Free what `malloc` returned."""
        self.calls += 1
        del self._memory[address]


_numbers = itertools.count(3)  # of streams and events


class _Event:
    def __init__(self, **_: bool) -> None:
        self.ptr = next(_numbers)


class _Stream:
    def __init__(self, **_: int) -> None:
        self.ptr = self.cuda_stream = next(_numbers)

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _fake_torch(default: _Stream) -> dict[str, ModuleType]:
    """Return modules with the names of PyTorch that the loader uses; a tensor is an array."""
    torch, utils, dlpack = (ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.dlpack"))
    vars(torch)["cuda"] = SimpleNamespace(
        current_stream=lambda _: default,
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: False,
    )
    vars(torch)["_C"] = SimpleNamespace(_cuda_getCurrentRawStream=lambda _: default.ptr)
    vars(dlpack)["from_dlpack"] = lambda capsule: capsule
    return {"torch": torch, "torch.utils": utils, "torch.utils.dlpack": dlpack}


@contextmanager
def counted_cuda() -> Iterator[CountedRuntime]:
    """Replace CUDA below CuPy, and PyTorch, within the block; yields the runtime with its counter."""
    import cupy

    from gpuloader.devices import cuda, places
    from gpuloader.kernels import launching, shuffle

    runtime = CountedRuntime(cupy.cuda.runtime.CUDARuntimeError)
    default = _Stream()

    class Array(cupy.ndarray):  # type: ignore[misc]
        def __dlpack__(self, *, stream: int | None = None) -> Any:  # CuPy's own asks the driver
            runtime.calls += 1
            return self

    fake = ModuleType("cupy")
    vars(fake)["__version__"] = cupy.__version__
    vars(fake)["ndarray"] = Array
    vars(fake)["cuda"] = SimpleNamespace(
        Stream=_Stream,
        Event=_Event,
        UnownedMemory=cupy.cuda.UnownedMemory,
        MemoryPointer=cupy.cuda.MemoryPointer,
        memory=cupy.cuda.memory,
        compiler=cupy.cuda.compiler,
        driver=SimpleNamespace(
            CUDADriverError=cupy.cuda.driver.CUDADriverError,
            ctxGetCurrent=runtime.ctxGetCurrent,
            ctxSetCurrent=runtime.ctxSetCurrent,
        ),
        runtime=runtime,
        is_available=lambda: True,
        get_current_stream=lambda *_: default,
    )
    kernel = lambda *_, **__: runtime.launch()  # noqa: E731
    places._opened.clear()
    with (
        mock.patch.object(cuda, "cupy", fake),
        mock.patch.dict(sys.modules, {"cupy": fake, **_fake_torch(default)}),
        mock.patch.object(launching, "load_kernel", return_value=kernel),
        mock.patch.object(shuffle, "sort", kernel),
    ):
        yield runtime
    places._opened.clear()
