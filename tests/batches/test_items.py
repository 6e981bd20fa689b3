"""Batches of an iterable dataset: one worker's pass over all its items, and one rank's share of them."""

import numpy as np
import pytest

from gpuloader import SampleError, get_worker_info, sample_rng
from gpuloader.batches.items import ItemAssembler, ItemState, ItemStream, ShareStream
from gpuloader.batches.schema import Collation, Fallback
from gpuloader.order.dividing import Division
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.order.worker_info import WorkerInfo, exchange_worker
from gpuloader.sources.describing import describe
from tests.loading import make_slot
from tests.sample_sets import Counting, Stateful


def stream_of(dataset, size=2, drop_last=False, reached=None, collation=None, **options):
    assembler = ItemAssembler(describe(dataset), collation or Collation())
    return ItemStream(assembler, size, drop_last=drop_last, reached=reached or ItemState(0, 0), **options)


def batches_of(stream):
    found = []
    while (staged := stream.stage(len(found), make_slot)) is not None:
        arrays = [view.tolist() for view in staged.slot.views(staged.layout)]
        found.append((arrays, list(staged.objects), staged.state))
    return found


def test_where_a_pass_goes_on():
    wanted = [[[4, 5]], [[6, 7]], [[8]]]
    skipping = stream_of(Counting(9), reached=ItemState(3, 2))
    found = batches_of(skipping)
    assert [entry[0] for entry in found] == wanted
    assert found[0][2] == ItemState(3, 3)
    stateful = stream_of(Stateful(9), reached=ItemState(0, 2, {"next": 4}))
    assert [entry[0] for entry in batches_of(stateful)] == wanted
    assert stateful._assembler.dataset.given == [4, 5, 6, 7, 8]
    assert batches_of(stream_of(Counting(3), reached=ItemState(0, 2))) == []
    with pytest.raises(ValueError, match="the dataset ended after 3 items"):
        batches_of(stream_of(Counting(3), reached=ItemState(0, 5)))


def test_a_state_is_a_copy_behind_its_batch_and_a_pass_that_had_ended_has_nothing_left():
    (*_, last) = found = batches_of(stream_of(Stateful(5)))
    # The last would describe the next pass.
    assert [state.state for _, _, state in found] == [{"next": 2}, {"next": 4}, None]
    assert last[2].ended
    stateful = stream_of(Stateful(5), reached=last[2])
    assert batches_of(stateful) == []
    assert stateful._assembler.dataset.given == []


def test_a_state_that_several_share_is_neither_kept_nor_loaded():
    dataset = Stateful(5)
    dataset.load_state_dict = None
    found = batches_of(stream_of(dataset, reached=ItemState(1, 1, {"next": 4}), keep_state=False))
    assert [entry[0] for entry in found] == [[[2, 3]], [[4]]]
    assert [state.state for _, _, state in found] == [None, None]


def test_a_state_that_cannot_be_loaded_again_is_not_kept():
    dataset = Counting(3)
    dataset.state_dict = lambda: pytest.fail("asked")
    assert [state.state for _, _, state in batches_of(stream_of(dataset))] == [None, None]


def test_an_error_of_the_dataset_is_no_reason_to_collate_what_came_before_it():
    """Nor is it where a framework's own function makes the batches that do not fit together."""

    def items():
        yield from range(3)
        raise OSError("disk")

    for fallback in (None, Fallback(list, lambda first: False)):
        with pytest.raises(SampleError, match="the dataset raised OSError: disk") as caught:
            batches_of(stream_of(items(), 8, collation=Collation(fallback=fallback)))
        assert (caught.value.batch, caught.value.index) == (0, 3)


def test_items_are_read_no_further_than_asked():
    given = []
    stream = stream_of((given.append(number) or number for number in range(9)), 3)
    stream.stage(0, make_slot)
    assert given == [0, 1, 2]


def share_of(items, rank, world_size, uneven="pad", size=2, drop_last=False, base=0):
    assembler = ItemAssembler(describe(items), Collation())
    return ShareStream(assembler, size, Division(rank, world_size, uneven), drop_last=drop_last, base=base)


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
            exchange_worker(info)
            stream = share_of(Told(), rank, 3, size=1)
            [view] = (staged := stream.stage(0, make_slot)).slot.views(staged.layout)
            found.append(view[0].tolist())
            assert get_worker_info() is info
    finally:
        exchange_worker(None)
        exchange_draw(outer)
    assert [one[:4] for one in found] == [[0, 1, 0, 1]] * 3
    assert len({one[4] for one in found}) == 1
    assert found[0][5] == found[1][5] != found[2][5]  # the third item of the same sequence


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("make", [lambda items: stream_of(items), lambda items: share_of(items, 0, 2)])
def test_a_generator_is_closed(make, holds):
    """Also if the dataset holds it, so that it would not end by itself."""
    closed, held = [], []

    def numbers():
        try:
            yield from range(9)
        finally:
            closed.append(True)

    class Own:
        def __iter__(self):
            held.append(numbers())
            return held[0] if holds else held.pop()

    stream = make(Own())
    stream.close()  # before the first batch
    stream.stage(0, make_slot)
    assert not closed
    stream.close()
    assert closed == [True]
