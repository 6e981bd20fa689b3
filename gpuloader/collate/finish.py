"""Transforms within collation: room for their results, their random draws, and on a CPU place their work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuloader.collate.form import Collation
from gpuloader.collate.stream import StagedBatch
from gpuloader.collate.structure import Structure
from gpuloader.fields.spec import Array, Indices
from gpuloader.order.stretch import Stretch
from gpuloader.staging.layout import Layout

if TYPE_CHECKING:  # a worker process should import only what its loader uses
    from gpuloader.transforms.operations import Spec
    from gpuloader.transforms.program import Program
    from gpuloader.transforms.programmer import Programmer


def room_for(collation: Collation, structure: Structure, levels: Sequence[int], layout: Layout) -> int:
    """Return the bytes a slot needs for a batch of this layout, including what its transforms need."""
    program = _program(collation, structure, levels, layout)
    if program is None:
        return layout.nbytes
    return (program.room if collation.on_host else program.copied).nbytes


def complete(collation: Collation, staged: StagedBatch, keys: Indices | Stretch) -> StagedBatch:
    """Write the transforms' random draws for the samples with these keys; on a CPU place, run the transforms.

    Raises
    ------
    SampleError
        A transform does not accept its field.
    """
    assert staged.structure is not None
    program = _program(collation, staged.structure, staged.levels, staged.layout)
    if program is None or collation.programmer is None:
        return staged
    arrays = staged.slot.views(program.room if collation.on_host else program.copied)
    _prepare(collation.programmer, program, arrays, keys)
    if collation.on_host:
        program.run_on_host(arrays)
        staged.layout, staged.levels = program.delivered, program.levels
    else:
        staged.layout = program.copied
    return staged


def list_draws(
    collation: Collation, structure: Structure, levels: Sequence[int], layout: Layout
) -> tuple[Spec, ...]:
    """Return the shapes and dtypes of the random draws that are copied with a batch of this layout."""
    program = _program(collation, structure, levels, layout)
    drawn = () if program is None else program.copied.fields[len(layout.fields) :]
    return tuple((one.shape, one.dtype) for one in drawn)


def complete_apart(
    collation: Collation, staged: StagedBatch, arrays: list[Array], keys: Indices
) -> StagedBatch:
    """Write the transforms' random draws for a batch of which a device copies some arrays from elsewhere.

    The arrays are the batch's, wherever they lie, and those of `list_draws`; raises like `complete`.
    """
    assert staged.structure is not None
    if collation.programmer is not None:
        names = staged.structure.array_names
        program = collation.programmer.program(names, staged.levels, staged.layout, drawn=True)
        _prepare(collation.programmer, program, arrays, keys)
    return staged


def _prepare(programmer: Programmer, program: Program, arrays: list[Array], keys: Indices | Stretch) -> None:
    """Check the staged arrays, and write the draws."""
    program.check(arrays)
    programmer.fill_draws(program, arrays, keys)


def _program(
    collation: Collation, structure: Structure, levels: Sequence[int], layout: Layout
) -> Program | None:
    if collation.programmer is None:
        return None
    return collation.programmer.program(structure.array_names, levels, layout, drawn=False)
