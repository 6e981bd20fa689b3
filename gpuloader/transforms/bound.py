"""A program bound to the memory of one device slot, so that later batches there cost only the launches."""

from __future__ import annotations

from typing import Any

from gpuloader.kernels.gather import fuse_gathers
from gpuloader.kernels.launching import Kernel, KernelName, Launch, only_note_kernels, record_launches
from gpuloader.transforms.operations import Chain, GatherRows, GatherSpan, KernelCall
from gpuloader.transforms.program import Program

_Prepared = tuple[Any, tuple[int, ...], tuple[int, ...], tuple[Any, ...]]


class BoundProgram:
    """Launches a program over the same arrays, batch after batch.

    The first time, every operation checks its arrays, chooses its grid and makes its arguments. The package's
    own operations only launch kernels, so later their launches are repeated, all gathers as one. A program
    with operations of the user's runs in full each time.

    Parameters
    ----------
    program : Program
        The program.
    arrays : list of array
        The device's arrays, one per field of the program's room.
    """

    def __init__(self, program: Program, arrays: list[Any]) -> None:
        self.program = program
        self._arrays = arrays
        self._launches: list[_Prepared] | None = None

    def launch(self, stream: Any) -> None:
        """Launch the program on a stream of the device, which is the current one.

        Raises
        ------
        LoaderError
            A step can only run on the host.
        """
        if self._launches is not None:
            for kernel, grid, block, arguments in self._launches:
                kernel(grid, block, arguments, stream=stream)
        elif all(is_repeatable(step.operation) for step in self.program.steps):
            with record_launches() as launches:
                self.program.run_on_device(self._arrays, stream)
            self._launches = [_prepare(one) for one in fuse_gathers(launches)]
        else:
            self.program.run_on_device(self._arrays, stream)


def find_kernels(program: Program, arrays: list[Any]) -> list[KernelName]:
    """Return the kernels that a program would launch, except for those of the user's own operations.

    Parameters
    ----------
    program : Program
        The program.
    arrays : list of array
        Arrays of the shapes, dtypes and alignment of those in the program's room; nothing is read or written.
    """
    with only_note_kernels() as kernels:
        for step in program.steps:
            if is_repeatable(step.operation):
                inputs, outputs = ([arrays[one] for one in part] for part in (step.inputs, step.outputs))
                step.operation.on_device(inputs, outputs, None)
    return list(dict.fromkeys(kernels))


def _prepare(launch: Launch) -> _Prepared:
    """Return a launch's parts, with the function for this device, which a CuPy kernel would look up."""
    _, kernel, grid, block, arguments = launch
    return getattr(kernel, "kernel", kernel), grid, block, arguments


def is_repeatable(operation: Any) -> bool:
    """Return whether an operation does nothing on a device but launch kernels of the package."""
    if isinstance(operation, Chain):
        return all(is_repeatable(call) for call, *_ in operation.calls)
    if isinstance(operation, KernelCall):
        return isinstance(getattr(operation.kernel, "func", operation.kernel), Kernel)
    return isinstance(operation, GatherRows | GatherSpan)
