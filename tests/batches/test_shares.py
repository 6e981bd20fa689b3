"""Shares: every rank reads all items of an iterable dataset, and keeps its own part of each step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import SampleError, get_worker_info, sample_rng
from gpuloader.batches.items import ItemAssembler, ShareStream
from gpuloader.batches.schema import Collation
from gpuloader.order.plan import Division
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.order.worker_info import WorkerInfo, enter_worker
from gpuloader.sources.describing import describe
from gpuloader.staging.ring import Slot


def make_slot(nbytes):
    region = np.empty(max(nbytes, 1), np.uint8)
    return Slot(region, region)


def share_of(items, rank, world_size, uneven="pad", size=2, drop_last=False, base=0):
    assembler = ItemAssembler(describe(items), Collation())
    return ShareStream(assembler, size, Division(rank, world_size, uneven), drop_last=drop_last, base=base)


def batches_of(stream, numbers):
    """Return the items and the state of each batch with one of these numbers, until there is none."""
    found = []
    for number in numbers:
        staged = stream.stage(number, make_slot)
        if staged is None:
            break
        assert staged.number == number
        [view] = staged.slot.views(staged.layout)
        found.append((view.tolist(), staged.state))
    return found


@given(
    count=st.integers(0, 40),
    size=st.integers(1, 4),
    world_size=st.integers(1, 4),
    uneven=st.sampled_from(["pad", "repeat", "drop"]),
    drop_last=st.booleans(),
    base=st.integers(0, 9),
    workers=st.integers(1, 3),
)
def test_the_items_of_a_step_are_dealt_to_the_ranks(
    count, size, world_size, uneven, drop_last, base, workers
):
    items, step = list(range(100, 100 + count)), size * world_size
    base = min(base, count)
    for rank in range(world_size):
        wanted = []
        for start in range(base, count, step):
            dealt = items[start : start + step]
            most = -(-len(dealt) // world_size) if uneven != "drop" else len(dealt) // world_size
            own = dealt[rank::world_size][:most]
            if not most or (drop_last and len(dealt) < step):
                break
            batch = (own or dealt[:1]) + (own or dealt)[-1:] * (most - max(len(own), 1))
            pads = uneven == "pad" and world_size > 1 and not drop_last
            wanted.append((batch, (len(own), most) if pads else None))
        found = [None] * len(wanted)
        for worker in range(workers):  # each reads all items, and stages some of the steps
            stream = share_of(items, rank, world_size, uneven, size, drop_last, base)
            found[worker::workers] = batches_of(stream, range(worker, len(wanted) + workers, workers))
        assert found == wanted


def test_no_more_items_are_read_than_those_of_the_step():
    read = []
    stream = share_of((read.append(item) or item for item in range(20)), 1, 3)
    for number, end in ((0, 6), (2, 18)):
        stream.stage(number, make_slot)
        assert read == list(range(end))


def test_an_error_names_the_step_and_the_item_in_it():
    def items():
        yield from range(9)
        raise OSError("disk")

    stream = share_of(items(), 0, 2)
    assert stream.stage(1, make_slot) is not None
    with pytest.raises(SampleError, match="the dataset raised OSError: disk") as caught:
        stream.stage(2, make_slot)
    assert (caught.value.batch, caught.value.index) == (2, 1)

    class Broken:
        def __iter__(self):
            raise OSError("no disk")

    with pytest.raises(SampleError, match="the dataset raised OSError: no disk") as caught:
        share_of(Broken(), 0, 2).stage(3, make_slot)
    assert caught.value.batch == 3


class Told:
    """Items that hold what the dataset is told of workers, ranks and random numbers."""

    def __iter__(self):
        while True:
            info = get_worker_info()
            drawn = sample_rng().integers(1 << 30)
            yield np.array([info.id, info.num_workers, info.rank, info.world_size, info.seed, drawn])


def test_a_dataset_is_told_of_one_worker_on_one_rank():
    """Else one that divides its items would do so again; and all must draw the same random numbers."""
    outer, found = exchange_draw(Draw(7, 1)), []
    try:
        for rank, worker in ((0, 0), (0, 1), (2, 1)):
            info = WorkerInfo(worker, 2, 5 + worker, None, (rank, 3))
            enter_worker(info)
            stream = share_of(Told(), rank, 3, size=1)
            [view] = (staged := stream.stage(0, make_slot)).slot.views(staged.layout)
            found.append(view[0].tolist())
            assert get_worker_info() is info
    finally:
        enter_worker(None)
        exchange_draw(outer)
    assert [one[:4] for one in found] == [[0, 1, 0, 1]] * 3
    assert len({one[4] for one in found}) == 1
    assert found[0][5] == found[1][5] != found[2][5]  # the third item of the same sequence


def test_an_iterator_that_can_be_closed_is_closed():
    closed = []

    def items():
        try:
            yield from range(9)
        finally:
            closed.append(True)

    stream = share_of(items(), 0, 2)
    stream.close()  # before the first batch
    stream.stage(0, make_slot)
    assert not closed
    stream.close()
    assert closed == [True]
