"""What the user of a dataset's loader sees of a step."""

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
        Name the fields of dicts; None: a batch has the form of a sample.
    masks : Masks or None
        For batches whose last samples may be repeated ones.
    """

    delivery: Delivery
    feeds: Sequence[FeedSpec] | None
    masks: Masks | None

    def present(self, progress: Progress, plan: ShardedPlan | DividedPlan | None, step: DeliveredStep) -> Any:
        """Return a step: the batch of the only place, or a list with one entry a place.

        The `plan` says how many samples of a batch count; None: the batch's own state does.
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
        # A tensor cannot be read-only, so it is made over a copy.
        [converted] = output.convert([mask.copy()], None)
        return converted
