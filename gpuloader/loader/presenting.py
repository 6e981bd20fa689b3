"""The last stage of a dataset's loader: turn a delivered step into what the user sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuloader.collate.form import build_batch
from gpuloader.devices.interop import NativeOutput
from gpuloader.fields.spec import FeedSpec
from gpuloader.loader.state import Progress
from gpuloader.order.plan import DividedPlan
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.split import Masks, ShardedPlan, add_mask
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
    masks : Masks or None
        Makes the masks of batches that may end in repeated samples; None adds no masks.
    """

    delivery: Delivery
    feeds: Sequence[FeedSpec] | None
    masks: Masks | None

    def present(self, progress: Progress, plan: ShardedPlan | DividedPlan | None, step: DeliveredStep) -> Any:
        """Return a step: the batch of the only place, or a list with one entry per place.

        The `plan` tells how many samples of a batch are real; None reads that from the batch's own state.
        """
        batches: list[Any] = []
        for place, (staged, arrays) in enumerate(step):
            progress.received(staged)
            assert staged.structure is not None
            batch = build_batch(staged.structure, staged.levels, arrays, staged.objects)
            if self.feeds is not None:
                batch = {feed.name: field for feed, field in zip(self.feeds, batch, strict=True)}
            if self.masks is not None:
                own, size = staged.state if plan is None else plan.take_own(staged.number)
                batch = add_mask(batch, self._mask(self.masks, place, own, size))
            batches.append(batch)
        return batches[0] if self.feeds is None and len(self.delivery.devices) == 1 else batches

    def _mask(self, masks: Masks, place: int, own: int, size: int) -> Any:
        mask = masks.get(self.delivery.devices[place], own, size)
        output = self.delivery.outputs[place]
        if isinstance(output, NativeOutput):
            return mask
        # The mask is shared and read-only, which a tensor cannot be, so the tensor gets a copy.
        [converted] = output.convert([mask.copy()], None)
        return converted
