"""The last stage of a dataset's loader: turn a delivered step into what the user sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuloader.base.errors import SampleError
from gpuloader.collate.form import build_batch
from gpuloader.collate.stream import StagedBatch
from gpuloader.devices.interop import NativeOutput
from gpuloader.fields.convert import IF_IT_VARIES, describe_field
from gpuloader.fields.spec import FeedSpec
from gpuloader.loader.state import Progress
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.split import Masks, add_mask
from gpuloader.pipeline.steps import DeliveredStep

Counting = Callable[[StagedBatch], tuple[int, int]]
"""Returns how many samples of a batch count, and how many it has."""


@dataclass(frozen=True, slots=True)
class Presenter:
    """Turns a delivered step into what the user sees, and counts it as received.

    Attributes
    ----------
    delivery : Delivery
        Where batches land.
    feeds : sequence of FeedSpec or None
        The fields whose names are the keys of each dict; None returns batches in the form of a sample.
    masks : Masks
        Makes the masks of batches that may end in repeated samples.
    alike : bool
        Whether the batches of a step are parts of one batch whose samples must all have one form.
    """

    delivery: Delivery
    feeds: Sequence[FeedSpec] | None
    alike: bool = False
    masks: Masks = field(default_factory=Masks)

    def present(self, progress: Progress, own: Counting | None, step: DeliveredStep) -> Any:
        """Return a step: the batch of the only place, or a list with one entry per place.

        If `own` is given, batches have masks of the samples that it counts.

        Raises
        ------
        SampleError
            The parts of a batch differ in form.
        """
        if self.alike:
            _check_alike([staged for staged, _ in step])
        batches: list[Any] = []
        for place, (staged, arrays) in enumerate(step):
            progress.received(staged)
            assert staged.structure is not None
            batch = build_batch(staged.structure, staged.levels, arrays, staged.objects)
            if self.feeds is not None:
                batch = {feed.name: field for feed, field in zip(self.feeds, batch, strict=True)}
            if own is not None:
                batch = add_mask(batch, self._mask(place, *own(staged)))
            batches.append(batch)
        return batches[0] if self.feeds is None and len(self.delivery.devices) == 1 else batches

    def _mask(self, place: int, own: int, size: int) -> Any:
        mask = self.masks.get(self.delivery.devices[place], own, size)
        output = self.delivery.outputs[place]
        if isinstance(output, NativeOutput):
            return mask
        # The mask is shared and read-only, which a tensor cannot be, so the tensor gets a copy.
        [converted] = output.convert([mask.copy()], None)
        return converted


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
