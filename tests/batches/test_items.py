"""Batches of an iterable dataset: one worker's pass over all its items, and one rank's share of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("collation", [Collation(), Collation(function=lambda samples: np.array(samples))])
@pytest.mark.parametrize(("drop_last", "wanted"), [(False, [[0, 1], [2, 3], [4]]), (True, [[0, 1], [2, 3]])])
def test_batches(collation, drop_last, wanted):
    found = batches_of(stream_of(Counting(5), drop_last=drop_last, collation=collation))
    assert [array for [array], _, _ in found] == wanted
    assert [state for _, _, state in found] == [
        ItemState(0, count + 1, ended=count == 2) for count in range(len(wanted))
    ]


def test_a_short_batch_in_every_form():
    items = [{"x": np.full(2, index), "name": f"{index}"} for index in range(3)]
    assert [entry[:2] for entry in batches_of(stream_of(items))] == [
        ([[[0, 0], [1, 1]]], [["0", "1"]]),
        ([[[2, 2]]], [["2"]]),
    ]
    assert [entry[:2] for entry in batches_of(stream_of("abc"))] == [([], [["a", "b"]]), ([], [["c"]])]
    varying = stream_of(items, collation=Collation(ragged=frozenset(["x"])))
    assert [entry[0] for entry in batches_of(varying)] == [[[0, 0, 1, 1], [0, 2, 4]], [[2, 2], [0, 2]]]
    dropping = stream_of(items, collation=Collation(ragged=frozenset(["x"])), drop_last=True)
    assert len(batches_of(dropping)) == 1


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


def test_an_item_unlike_the_first_of_its_batch():
    stream = stream_of([1, 2, "x", 4], 3)
    with pytest.raises(SampleError, match="got text: 'x'") as caught:
        stream.stage(0, make_slot)
    assert (caught.value.batch, caught.value.index, caught.value.field) == (0, 2, "0")


@pytest.mark.parametrize("names", [(), ("x",)])
def test_each_batch_has_the_form_of_its_own_first_item(names):
    items = [{"x": np.arange(length)} for length in (2, 2, 3, 3, 1, 1)] + [{"y": "a"}, {"y": "b"}]
    found = batches_of(stream_of(items[: 6 if names else 8], collation=Collation(ragged=frozenset(names))))
    if names:
        assert [arrays[1] for arrays, _, _ in found] == [[0, 2, 4], [0, 3, 6], [0, 1, 2]]
    else:
        assert [np.shape(arrays) for arrays, _, _ in found] == [(1, 2, 2), (1, 2, 3), (1, 2, 1), (0,)]
        assert found[-1][1] == [["a", "b"]]


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


def test_items_draw_by_their_worker():
    class Drawn:
        def __iter__(self):
            while True:
                yield sample_rng().integers(1 << 30)

    def draw(worker):
        outer = exchange_draw(Draw(7, 0))
        try:
            stream = stream_of(Drawn(), 4, reached=ItemState(worker, 0))
            staged = stream.stage(0, make_slot)
            return staged.slot.views(staged.layout)[0].tolist()
        finally:
            exchange_draw(outer)

    assert draw(0) == draw(0) != draw(1)
    assert len(set(draw(0))) == 4


def share_of(items, rank, world_size, uneven="pad", size=2, drop_last=False, base=0):
    assembler = ItemAssembler(describe(items), Collation())
    return ShareStream(assembler, size, Division(rank, world_size, uneven), drop_last=drop_last, base=base)


def shares_of(stream, numbers):
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
            found[worker::workers] = shares_of(stream, range(worker, len(wanted) + workers, workers))
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
