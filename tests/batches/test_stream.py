"""The loop that stages a reader's batches: where its errors happened, and slots that come back."""

import numpy as np
import pytest

from gpuloader.batches.stream import Reached, fill_slot, stage_all
from gpuloader.staging.layout import arrange
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter

LAYOUT = arrange((((2, 3), np.dtype("int64")),))


def test_a_batch_that_cannot_be_written_costs_no_slot():
    ring, meter = Ring(2, 1), Meter()

    def fail(views):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fill_slot(fail, LAYOUT, ring, meter, 0)
    assert (ring.free, meter.batches) == (2, 0)
    slot = fill_slot(lambda views: views[0].fill(3), LAYOUT, ring, meter, 0)
    assert slot.views(LAYOUT)[0].tolist() == [[3] * 3] * 2
    assert (ring.free, meter.batches, meter.nbytes) == (1, 1, LAYOUT.nbytes)


@pytest.mark.parametrize(("reached", "fails_at", "batch"), [(0, None, 0), (0, 2, 2), (3, 4, 4)])
def test_an_error_of_the_reader_names_the_batch(reached, fails_at, batch):
    closed = []

    def reader():
        if fails_at is None:
            raise OSError("cannot open")
        return items()

    def items():
        try:
            for number in range(9):
                if number == fails_at:
                    raise OSError("cannot read")
                yield number
        finally:
            closed.append(1)

    class Staged:
        state = None

    staged = stage_all(reader, lambda items, _: next(items) is not None and Staged(), Reached(reached))
    with pytest.raises(OSError, match="cannot") as caught:
        list(staged)
    assert f"batch {batch}" in caught.value.__notes__[0]
    assert closed == [1] * (fails_at is not None)
