"""Shards: their division among streams, their order, and resuming."""

import itertools
import json
import os
import pickle
import threading
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import DataLoader
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.order.worker_info import WorkerInfo, exchange_worker
from gpuloader.sources.block import number_rows
from gpuloader.sources.files.parquet import Group
from gpuloader.sources.files.shards import Reached, ShardDataset, Stream
from tests.fakes import wait_until


class Numbers(ShardDataset):
    """Whole numbers in shards of given sizes, read three at a time."""

    _pattern = "*"

    def __init__(self, sizes, *, together=1, remote=False, nbytes=0, **options):
        super().__init__("memory://numbers" if remote else "numbers", **options)
        self.sizes, self._counts = sizes, dict(enumerate(sizes))
        self.together = together
        self.nbytes = nbytes
        self.read = []
        self.most = 0

    @property
    def shards(self):
        return len(self.sizes)

    def __iter__(self):
        for [(numbers, rows)] in self._takes(1):
            yield from [numbers[row] for row in number_rows(rows).tolist()]

    def _together(self, order, first):
        return min(self.together, len(order) - first)

    def _read(self, shards, skip):
        self.read += shards
        starts = [(sum(self.sizes[:shard]), self.sizes[shard]) for shard in shards]
        numbers = [number for start, size in starts for number in range(start, start + size)][skip:]
        for at in range(0, len(numbers), 3):
            yield numbers[at : at + 3]

    def _nbytes(self, shard):
        return self.nbytes

    def _gather(self, pieces):
        numbers = list(itertools.chain(*pieces))
        self.most = max(self.most, len(numbers))
        return numbers


SIZES = [5, 1, 9, 4, 0, 7, 3, 6]
TOTAL = sum(SIZES)
SHUFFLED = {"shuffle": True, "shuffle_buffer": 8}
BUFFERS = pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, SHUFFLED], ids=["in order", "shards", "window"]
)


@contextmanager
def reading(rank=0, ranks=1, worker=0, workers=1, epoch=0):
    exchange_worker(WorkerInfo(worker, workers, 0, None, (rank, ranks)))
    outer = exchange_draw(Draw(7, epoch))
    try:
        yield
    finally:
        exchange_draw(outer)
        exchange_worker(None)


@BUFFERS
@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 1), (1, 3), (2, 3), (5, 4)])
def test_streams_have_disjoint_parts_that_are_everything(options, ranks, workers):
    found = []
    for rank in range(ranks):
        for worker in range(workers):
            with reading(rank, ranks, worker, workers, epoch=2):
                found += Numbers(SIZES, **options)
    assert sorted(found) == list(range(TOTAL))


def test_a_rank_has_the_same_shards_whatever_its_workers():
    def shards(workers):
        read = set()
        for worker in range(workers):
            with reading(1, 2, worker, workers):
                dataset = Numbers(SIZES, shuffle=True)
                list(dataset)
                read |= set(dataset.read)
        return read

    assert shards(1) == shards(2) == shards(3)


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(epoch, seed=0):
        with reading(epoch=epoch):
            return list(Numbers(SIZES, **SHUFFLED, seed=seed))

    assert order(1) == order(1)
    assert len({tuple(order(*key)) for key in [(0,), (1,), (0, 1), (1, 1)]}) == 4
    # The epoch is the loader's, and the seed is not, so that ranks without a seed read disjoint parts.
    for seed in (1, 2):
        loader = DataLoader(Numbers(SIZES, **SHUFFLED), places="cpu", batch_size=100, seed=seed)
        assert [next(iter(loader)).tolist() for _ in range(2)] == [order(0), order(1)]


def test_without_a_buffer_shards_stay_whole_and_with_one_samples_move_within_it_alone():
    dataset = Numbers(SIZES, shuffle=True, shuffle_buffer=8)
    with reading():
        found, plain = list(dataset), list(Numbers(SIZES, shuffle=True))
    starts = [sum(SIZES[:shard]) for shard in range(len(SIZES)) if SIZES[shard]]
    runs = [at for at in range(TOTAL) if not at or plain[at] != plain[at - 1] + 1]
    assert {plain[at] for at in runs} <= set(starts)
    assert plain != list(range(TOTAL))
    assert dataset.most == 8  # held at once
    for start in range(0, TOTAL, 8):
        assert sorted(found[start : start + 8]) == sorted(plain[start : start + 8])
    assert found != plain


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    buffer=st.none() | st.integers(1, 12),
    size=st.integers(1, 7),
    together=st.integers(1, 4),
    remote=st.booleans(),
    data=st.data(),
)
def test_a_pass_resumes_wherever_it_was_left(sizes, buffer, size, together, remote, data):
    options = {"shuffle": True, "shuffle_buffer": buffer, "remote": remote}

    def take(dataset):
        for held in dataset._takes(size):
            yield [numbers[row] for numbers, rows in held for row in number_rows(rows).tolist()]

    with reading(epoch=3):
        whole = list(take(Numbers(sizes, **{**options, "remote": False})))
        assert [len(batch) for batch in whole[:-1]] == [size] * (len(whole) - 1)
        count = data.draw(st.integers(0, len(whole)))
        first, alone = Numbers(sizes, together=together, **options), Numbers(sizes, **options)
        for _ in zip(range(count), take(first), take(alone), strict=False):
            pass
        state = first.state_dict()
        assert state == alone.state_dict()
    with reading(epoch=0):  # the state's epoch replaces this one
        second = Numbers(sizes, together=together, **options)
        second.load_state_dict(state)
        assert list(take(second)) == whole[count:]
        assert len(second.read) <= len(sizes)


def names_of_readers():
    return [one.name for one in threading.enumerate() if one.name == "gpuloader-buffered"]


def test_remote_shards_are_asked_for_together_while_the_first_is_consumed():
    asked = threading.Barrier(4)

    class Slow(Numbers):
        def _read(self, shards, skip):
            asked.wait(60)  # breaks unless four are read at a time
            yield from super()._read(shards, skip)

    with reading():
        assert list(Slow([2] * 8, remote=True)) == list(range(16))
    wait_until(lambda: not names_of_readers())


@pytest.mark.parametrize(("nbytes", "most"), [(0, 16), (8 << 20, 4), (20 << 20, 1), (64 << 20, 1)])
def test_remote_shards_are_read_ahead_within_a_bound(nbytes, most):
    with reading():
        dataset = Numbers([9] * 30, remote=True, nbytes=nbytes)
        samples = iter(dataset)
        assert next(samples) == 0
        wait_until(lambda: len(dataset.read) == most)
        assert len(names_of_readers()) <= most
        for at in range(1, 9 * 29):
            assert next(samples) == at
            assert len(dataset.read) <= at // 9 + most
        samples.close()
        wait_until(lambda: not names_of_readers())


@pytest.mark.parametrize("end", ["close", "drop", "interrupt", "error"])
def test_the_end_of_a_pass_ends_the_threads_that_read_ahead(end):
    class Bad(Numbers):
        def _read(self, shards, skip):
            if shards == [2]:
                raise OSError("the third shard")
            yield from super()._read(shards, skip)

    with reading():
        samples = iter(Bad([20] * 9, remote=True))
        assert [next(samples) for _ in range(40)] == list(range(40))  # and not a sample fewer
        wait_until(lambda: len(names_of_readers()) == 6)
        caught = None
        if end == "close":
            samples.close()
        elif end == "drop":
            del samples
        elif end == "interrupt":
            with pytest.raises(KeyboardInterrupt) as caught:
                samples.throw(KeyboardInterrupt)
        else:
            with pytest.raises(OSError, match="the third shard") as caught:
                next(samples)
        wait_until(lambda: not names_of_readers())  # although the traceback is still there
        del caught


def test_local_shards_are_read_by_the_consumer_and_not_again_after_resuming():
    with reading():
        first = Numbers([6] * 10)
        samples = iter(first)
        next(samples)
        assert (first.read, names_of_readers()) == ([0], [])
        for _ in range(30):
            next(samples)
        second = Numbers([6] * 10)
        second.load_state_dict(first.state_dict())
        assert list(second) == list(range(31, 60))
    assert second.read == [5, 6, 7, 8, 9]


def test_a_state_is_for_as_many_streams():
    dataset = Numbers(SIZES)
    with reading(0, 2):
        next(iter(dataset))
        state = dataset.state_dict()
    dataset.load_state_dict(state)
    with reading(0, 3), pytest.raises(ValueError, match="stream 0 of 2, this is stream 0 of 3"):
        list(dataset)
    with pytest.raises(ValueError, match="not the state of a dataset in shards"):
        dataset.load_state_dict({"batches": 3})


def load(sizes, workers, size, **options):
    how = {"num_workers": workers, "start_method": "fork"} if workers > 1 else {}
    return DataLoader(Numbers(sizes, **options), places="cpu", batch_size=size, **how)


def leave(loader, count, state=None):
    """Return the numbers of some batches of a loader that resumes at a state, and its own state then."""
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    epoch = iter(loader)
    batches = [batch["n"] if isinstance(batch, dict) else batch for batch in itertools.islice(epoch, count)]
    state = loader.state_dict()
    epoch.close()
    return [number for batch in batches for number in batch.tolist()], state


def run_ranks(count, batches, states=None, *, sizes=(5,) * 12, size=4, workers=1, counted=True, **options):
    """Return what each rank reads, and the states of all."""
    found = []
    for rank in range(count):
        with mock.patch.dict(os.environ, {"RANK": str(rank), "WORLD_SIZE": str(count)}):
            loader = load(sizes, workers, size, **options)
            if not counted:  # as of tar and text files
                loader.dataset._counts = {}
            found.append(leave(loader, batches, states))
    return [numbers for numbers, _ in found], [state for _, state in found]


@pytest.mark.parametrize(
    ("options", "workers"), [({}, (1, 3, 2)), ({"shuffle": True}, (3, 1, 2)), (SHUFFLED, (2, 4, 1))], ids=str
)
def test_other_workers_and_batches_go_on_where_others_were(options, workers):
    sizes = [7, 2, 0, 9, 4, 8, 3, 6, 5, 1, 12]
    first, state = leave(load(sizes, workers[0], 4, **options), 5)
    second, state = leave(load(sizes, workers[1], 3, **options), 4, state)
    rest, state = leave(load(sizes, workers[2], 5, **options), None, state)
    assert (len(first), 9 < len(second) <= 12) == (20, True)  # a worker that ends has a short batch
    assert sorted(first + second + rest) == list(range(sum(sizes)))
    assert leave(load(sizes, 1, 5, **options), None, state)[0] != rest  # the next epoch
    assert state["epoch"] == 1


@pytest.mark.parametrize(
    ("options", "count"), [({}, 0), ({"shuffle": True}, 1), (SHUFFLED, 0), (SHUFFLED, 1)], ids=str
)
def test_other_workers_go_on_where_some_had_not_begun(options, count):
    sizes = [2, 9, 0, 5]  # the first worker has a single short batch, and ends with it
    first, state = leave(load(sizes, 2, 10, **options), count)
    second, state = leave(load(sizes, 3, 4, **options), 1, state)
    rest, _ = leave(load(sizes, 1, 4, **options), None, state)
    assert sorted(first + second + rest) == list(range(sum(sizes)))


@BUFFERS
def test_threads_continue_where_as_many_processes_were(options):
    threads = DataLoader(
        Numbers(SIZES, **options), places="cpu", batch_size=4, num_workers=2, worker_type="thread"
    )
    first, state = leave(load(SIZES, 2, 4, **options), 3)
    rest, _ = leave(threads, None, state)
    assert sorted(first + rest) == list(range(TOTAL))


@pytest.mark.parametrize(
    ("legs", "problem"),
    [
        ([(1, 4)], "read by one worker or none, but this loader reads it with 2"),
        ([(2, 3)], "counts batches of 3 samples"),
        ([(1, 4), (2, 4)], "threads share the dataset; use worker processes, or one worker, to resume"),
    ],
)
def test_threads_which_share_the_files_refuse_what_they_cannot_continue(legs, problem):
    state = None
    for workers, size in legs:
        _, state = leave(load(SIZES, workers, size), 3, state)
    threads = DataLoader(Numbers(SIZES), places="cpu", batch_size=4, num_workers=2, worker_type="thread")
    with pytest.raises(ValueError, match=problem):
        threads.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [({}, 2, 2), (SHUFFLED, 3, 2), ({"shuffle": True}, 2, 1), (SHUFFLED, 2, 3)],
    ids=str,
)
def test_other_ranks_go_on_from_the_state_of_one(options, before, after):
    sizes = [6, 5, 7, 6, 8, 4, 6, 6, 7]
    first, states = run_ranks(before, 4, sizes=sizes, size=3, **options)
    rest, _ = run_ranks(after, None, states[before - 1], sizes=sizes, size=3, workers=2, **options)
    assert sorted(itertools.chain(*first, *rest)) == list(range(sum(sizes)))


@given(
    sizes=st.lists(st.integers(0, 9), min_size=3, max_size=9),
    buffer=st.none() | st.integers(1, 12),
    legs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=3),
    ranks=st.integers(1, 3),
)
def test_other_ranks_go_on_from_the_states_of_all(sizes, buffer, legs, ranks):
    options = {"shuffle": True, "shuffle_buffer": buffer, "sizes": sizes, "counted": False}
    found, states = [], None
    for world_size, size, count in [*legs, (ranks, 5, None)]:
        more, states = run_ranks(world_size, count, states, size=size, **options)
        found += itertools.chain(*more)
        if all(state["epoch"] for state in states):
            break
    assert sorted(found) == list(range(sum(sizes)))


@pytest.mark.parametrize("order", [[1, 0], [0, 0], [1, 1]], ids=str)
def test_states_of_all_ranks_in_another_order_are_refused(order):
    _, states = run_ranks(2, 3)
    with pytest.raises(ValueError, match=r"state \d of 2 is not that of rank \d of 2"):
        run_ranks(2, None, [states[rank] for rank in order])
    with pytest.raises(ValueError, match="state 0 of 1 is not that of rank 0 of 1"):
        run_ranks(1, None, states[1:])
    with pytest.raises(ValueError, match="with shard=, the states of all ranks are alike"):
        DataLoader(Numbers([5]), places="cpu", shard=(0, 2), uneven="drop").load_state_dict(states)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_more_ranks_begin_the_next_epoch_like_any_other(ranks):
    _, states = run_ranks(2, None, **SHUFFLED)
    with_list, _ = run_ranks(ranks, None, states, **SHUFFLED)
    with_one, _ = run_ranks(ranks, None, states[0], **SHUFFLED)
    assert with_list == with_one
    assert all(with_list)


def test_files_whose_lengths_are_unknown_keep_their_ranks():
    _, states = run_ranks(2, 2, sizes=SIZES, counted=False)
    with pytest.raises(ValueError, match="pass load_state_dict a list of the states of all ranks, or make"):
        run_ranks(3, 1, states[0], sizes=SIZES, counted=False)


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (Numbers([3, 4], **SHUFFLED), "shards=8, this one has 2"),
        (Numbers(SIZES, shuffle=True, shuffle_buffer=9), "shuffle_buffer=8, this one has 9"),
        (Numbers(SIZES), "shuffle=True, this one has False"),
        (Numbers(SIZES, **SHUFFLED, seed=1), "seed=0, this one has 1"),
    ],
)
def test_a_state_of_another_order_is_refused(other, problem):
    dataset = Numbers(SIZES, **SHUFFLED)
    next(iter(dataset))
    with pytest.raises(ValueError, match=problem):
        other.load_state_dict(dataset.state_dict())


def test_a_rank_without_a_shard_is_an_error_and_not_a_short_epoch():
    with reading(0, 3), pytest.raises(ValueError, match="3 ranks cannot share 2 shards"):
        list(Numbers([5, 5]))
    with reading(0, 2, 1, 2):
        assert list(Numbers([5, 5])) == []  # a worker may have none
    assert list(Numbers([])) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"shuffle_buffer": 5}, "needs shuffle=True"),
        ({"shuffle": True, "shuffle_buffer": 0}, "shuffle_buffer must be an integer of 1 or more"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_are_checked_at_once(options, problem):
    with pytest.raises(ValueError, match=problem):
        Numbers(SIZES, **options)


def test_positions_and_row_groups_that_a_dataset_was_pickled_with_load():
    """A dataset that was read without workers holds its position, and so does its pickle of version 0.2.0."""
    pickled = (
        b"\x80\x04\x95]\x00\x00\x00\x00\x00\x00\x00\x8c\x1egpuloader.sources.files.shards\x94\x8c\x06Stream\x94\x93"
        b"\x94)\x81\x94]\x94(K\x01K\x02K\x01K\x03ebh\x00\x8c\x07Reached\x94\x93\x94)\x81\x94]\x94(K\x04K\x05K\x06K\x07"
        b"eb\x86\x94."
    )
    assert pickle.loads(pickled) == (Stream(1, 2, 1, 3), Reached(4, 5, 6, 7))
    pickled = (
        b"\x80\x04\x95?\x00\x00\x00\x00\x00\x00\x00\x8c\x1fgpuloader.sources.files.parquet\x94\x8c\x05Group\x94"
        b"\x93\x94)\x81\x94]\x94(K\x01K\x02K\x03K\x04K\x05eb."
    )
    assert pickle.loads(pickled) == Group(1, 2, 3, 4, 5)
