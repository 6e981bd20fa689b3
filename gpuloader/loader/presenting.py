"""The last stage of a dataset's loader: turn a delivered step into what the user sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuloader.collate.form import build_batch
from gpuloader.collate.stream import StagedBatch
from gpuloader.devices.interop import NativeOutput
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
    """

    delivery: Delivery
    feeds: Sequence[FeedSpec] | None
    masks: Masks = field(default_factory=Masks)

    def present(self, progress: Progress, own: Counting | None, step: DeliveredStep) -> Any:
        """Return a step: the batch of the only place, or a list with one entry per place.

        If `own` is given, batches have masks of the samples that it counts.
        """
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
