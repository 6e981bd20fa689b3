"""The last stage of a dataset's loader: turn a delivered step into what the user sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuloader.base.errors import SampleError
from gpuloader.collate.form import build_batch
from gpuloader.collate.stream import StagedBatch
from gpuloader.fields.convert import IF_IT_VARIES, describe_field
from gpuloader.fields.spec import FeedSpec
from gpuloader.loader.state import Progress
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.split import add_mask
from gpuloader.pipeline.steps import DeliveredStep


@dataclass(frozen=True, slots=True)
class Presenter:
    """Turns a delivered step into what the user sees, and counts it as received.

    Attributes
    ----------
    delivery : Delivery
        Where batches land.
    feeds : sequence of FeedSpec or None
        The fields whose names are the keys of each dict; None returns batches in the form of a sample.
    alike : bool
        Whether the batches of a step are parts of one batch whose samples must all have one form.
    """

    delivery: Delivery
    feeds: Sequence[FeedSpec] | None
    alike: bool = False

    def present(self, progress: Progress, masked: bool, step: DeliveredStep) -> Any:
        """Return a step: the batch of the only place, or a list with one entry per place.

        If it is `masked`, the last array of each place is the batch's mask.

        Raises
        ------
        SampleError
            The parts of a batch differ in form.
        """
        if self.alike:
            _check_alike([staged for staged, _ in step])
        batches: list[Any] = []
        for staged, arrays in step:
            progress.received(staged)
            assert staged.structure is not None
            mask = arrays.pop() if masked else None
            batch = build_batch(staged.structure, staged.levels, arrays, staged.objects)
            if self.feeds is not None:
                batch = {feed.name: field for feed, field in zip(self.feeds, batch, strict=True)}
            if masked:
                batch = add_mask(batch, mask)
            batches.append(batch)
        return batches[0] if self.feeds is None and len(self.delivery.devices) == 1 else batches


def _check_alike(parts: Sequence[StagedBatch]) -> None:
    """Raise `SampleError` unless the parts of a batch have the same fields, shapes and dtypes."""
    first, *others = parts
    assert first.structure is not None
    for part in others:
        assert part.structure is not None
        if part.layout is first.layout:
            continue
        if part.structure != first.structure:
            raise _unlike(part, first.structure.describe(), part.structure.describe())
        names = first.structure.array_names
        for name, one, other in zip(names, first.layout.fields, part.layout.fields, strict=True):
            if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
                expected, got = (describe_field(each.shape[1:], each.dtype) for each in (one, other))
                raise _unlike(part, expected, got, name)


def _unlike(part: StagedBatch, expected: str, got: str, field: str | None = None) -> SampleError:
    return SampleError(
        f"expected {expected} as in the first part of the batch that split='shards' has cut, got {got}; "
        f"{IF_IT_VARIES}",
        batch=part.number,
        field=field,
    )
