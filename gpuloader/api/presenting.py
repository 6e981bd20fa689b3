"""What the user sees of a delivered step: batches nested like samples, with their masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuloader.api.loading import LoadingPlan
from gpuloader.api.state import Position
from gpuloader.batches.staged import StagedBatch
from gpuloader.epoch.delivery import add_mask
from gpuloader.epoch.epoch import DeliveredStep
from gpuloader.errors import SampleError
from gpuloader.fields.convert import IF_IT_VARIES, describe_field

Present = Callable[[DeliveredStep], Any]
"""Returns what the user sees of a delivered step."""


def present_step(plan: LoadingPlan, position: Position, masked: bool, step: DeliveredStep) -> Any:
    """Return a step, counted as received: the batch of the only place, or a list with one entry per place.

    If it is `masked`, the last array of each place is the batch's mask.
    """
    # Each part takes its schema from its own first sample. Kept samples are collated, which compares them.
    if plan.delivery.shards > 1 and not plan.collation.keeps:
        _check_alike([staged for staged, _ in step])
    batches: list[Any] = []
    for staged, arrays in step:
        position.received(staged)
        assert staged.tree is not None
        mask = arrays.pop() if masked else None
        batch = staged.tree.build_batch(staged.levels, arrays, staged.objects, transposed=plan.transposed)
        if plan.names is not None:
            batch = dict(zip(plan.names, batch, strict=True))
        batches.append(add_mask(batch, mask) if masked else batch)
    return batches[0] if plan.names is None and len(plan.delivery.devices) == 1 else batches


def _check_alike(parts: Sequence[StagedBatch]) -> None:
    """Raise `SampleError` unless the parts of a batch have the same fields, shapes and dtypes."""
    first, *others = parts
    assert first.tree is not None
    for part in others:
        assert part.tree is not None
        if part.layout is first.layout:  # equal batches share one, so this is nearly always all
            continue
        field, expected, got = None, first.tree.describe(), part.tree.describe()
        if part.tree == first.tree:
            names = first.tree.array_names
            for name, one, other in zip(names, first.layout.fields, part.layout.fields, strict=True):
                if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
                    field = name
                    expected, got = (describe_field(each.shape[1:], each.dtype) for each in (one, other))
                    break
            else:
                continue
        raise SampleError(
            f"expected {expected} as in the first part of the batch that split='shards' has cut, got {got}; "
            f"{IF_IT_VARIES}",
            batch=part.number,
            field=field,
        )
