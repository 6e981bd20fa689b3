"""Mixed datasets: proportions, what happens when one ends, repeating, resuming and ranks."""

import itertools
import os
import pickle
from contextlib import contextmanager
from functools import partial
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader import (
    BatchSampler,
    ComposeDataset,
    ConcatDataset,
    CSVDataset,
    DistributedBatchSampler,
    IterableDataset,
    MixDataset,
    ParquetDataset,
    RandomSampler,
    SequenceSampler,
    Subset,
    TarDataset,
    TensorDataset,
    get_worker_info,
    random_split,
)
from gpuloader.order.order import AT_END, Mixed
from tests import loading
from tests.sample_sets import PROCESSES, WORKERS, MadeAtOnce, name_workers
from tests.sources.files.tar_files import write_tar
from tests.sources.files.test_shards import leave

terms = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=4)


def mix(at_end="stop", sizes=(20, 60, 200), weights=(1, 2, 3)):
    """Return a mix of ranges that do not overlap: 0 …, 1000 …, 2000 …."""
    parts = [range(1000 * at, 1000 * at + size) for at, size in enumerate(sizes)]
    return MixDataset(parts, weights, at_end=at_end)


load = partial(loading.load, batch_size=7, seed=4, shuffle=True)


def samples(loader):
    return [number for batch in loader for number in batch.tolist()]


def counts(found):
    return np.bincount(np.array(found) // 1000, minlength=3).tolist()


def order_of(sizes, weights, at_end, shuffle=True, seed=4, epoch=1):
    order = Mixed(tuple(sizes), tuple(map(float, weights)), at_end, shuffle, seed, epoch)
    return order, order.slice(0, len(order)).tolist()


class TestWhenOneEnds:
    def test_stop_ends_the_epoch(self):
        found = samples(load(mix("stop")))
        assert (counts(found), len(set(found))) == ([20, 40, 60], 120)

    def test_repeat_reads_all_of_it_again_until_all_were_read(self):
        found = samples(load(mix("repeat")))
        assert counts(found) == [67, 133, 200]
        times = np.bincount(found, minlength=2200)
        assert times[2000:].tolist() == [1] * 200
        assert set(times[:20]) == {3, 4}
        assert set(times[1000:1060]) == {2, 3}
        first = [one for one in found if one < 1000]
        passes = [first[at : at + 20] for at in range(0, 60, 20)]
        assert [sorted(one) for one in passes] == [list(range(20))] * 3
        assert passes[0] != passes[1] != list(range(20))

    def test_drop_goes_on_in_proportion(self):
        order, found = order_of((200, 6000, 20000), (1, 2, 3), "drop", shuffle=False)
        owners = np.searchsorted([200, 6200], found, side="right")
        assert np.bincount(owners[:1200]).tolist() == [200, 400, 600]
        assert np.bincount(owners[1200:15200]).tolist() == [0, 5600, 8400]
        assert set(owners[15200:]) == {2}
        assert len(order) == 26200
        parts = [order.slice(at, at + 9).tolist() for at in (0, 9, 5000)]  # the first two of one block
        assert parts == [found[:9], found[9:18], found[5000:5009]]


@given(terms=terms, at_end=st.sampled_from(AT_END), shuffle=st.booleans(), cut=st.integers(0, 300))
def test_an_order_can_be_entered_anywhere(terms, at_end, shuffle, cut):
    sizes, weights = zip(*terms, strict=True)
    order, found = order_of(sizes, weights, at_end, shuffle)
    times = np.bincount(found, minlength=sum(sizes))
    if at_end == "repeat":
        assert times.min() >= 1
        starts = np.cumsum([0, *sizes])
        assert all(np.ptp(times[a:b]) <= 1 for a, b in itertools.pairwise(starts))
    else:
        assert times.max() == 1
    if at_end == "drop":
        assert times.min() == 1
    cut = min(cut, len(order))
    assert order.slice(cut, len(order)).tolist() == found[cut:]
    assert order.at(np.arange(len(order))[::-1]).tolist() == found[::-1]
    assert pickle.loads(pickle.dumps(order)).slice(0, len(order)).tolist() == found


class TestOrder:
    def test_every_block_has_each_in_proportion(self):
        found = np.array(order_of((10**4, 10**5, 10**6), (1, 2, 3), "stop")[1])
        owners = np.searchsorted([10**4, 11 * 10**4], found, side="right")
        for start in range(0, 5 * 10**4, 4096):
            shares = np.bincount(owners[start : start + 4096]) / 4096
            assert np.abs(shares - [1 / 6, 2 / 6, 3 / 6]).max() < 0.001
        runs = np.diff(np.flatnonzero(np.diff(owners)))
        assert runs.max() > 5  # not a pattern

    def test_another_one_each_epoch(self):
        loader = load(mix())
        first, second = samples(loader), samples(loader)
        assert first != second
        large = [{one for one in found if one >= 2000} for found in (first, second)]
        assert large[0] != large[1]  # another part of what is not read in full
        loader.set_epoch(0)
        assert samples(loader) == first

    def test_without_shuffling_each_is_read_in_its_order(self):
        found = samples(load(mix(), shuffle=False))
        for at, stop in ((0, 20), (1000, 1040), (2000, 2060)):
            assert [one for one in found if at <= one < at + 1000] == list(range(at, stop))
        assert counts(found[:60]) == [10, 20, 30]

    def test_billions_of_samples_are_entered_at_once(self):
        order = Mixed((10**12, 3 * 10**12), (1.0, 9.0), "repeat", True, 1, 0)
        assert len(order) > 3.3 * 10**12
        assert len(set(order.slice(2 * 10**12, 2 * 10**12 + 100).tolist())) == 100
        order, count = Mixed((2**51 - 1, 2**51), (1.0, 1.0), "stop", False, 1, 0), 2**52 - 2
        assert len(order) == count  # almost the most samples that an epoch may have
        assert order.slice(count - 4, count).tolist() == [2**51 - 3, 2**52 - 4, 2**51 - 2, 2**52 - 3]

    def test_tiny_sets_may_be_repeated_often(self):
        times = np.bincount(samples(load(mix("repeat", (1, 3, 3000), (1, 1, 2)))))
        assert times[[0, 1000, 1001, 1002]].tolist() == [1500, 500, 500, 500]
        assert set(times[2000:]) == {1}
        assert order_of((2, 5), (1, 1), "repeat")[1] == [0, 2, 4, 1, 3, 6, 5, 1, 0, 0]  # in every release


class TestLoaders:
    def test_without_shuffling_ranks_need_no_seed(self):
        load(mix(), seed=None, shuffle=False, shard=(0, 2))
        with pytest.raises(ValueError, match="pass the same seed to all of them"):
            load(mix(), seed=None, shard=(0, 2))

    @pytest.mark.parametrize("cache", ["host", "device"])
    def test_a_cache_holds_every_sample_once_and_keeps_the_order(self, cache):
        cached, plain = load(mix("repeat"), cache=cache), load(mix("repeat"))
        for _ in range(2):
            assert samples(cached) == samples(plain)

    def test_samples_are_read_together_if_a_dataset_can(self):
        many = MadeAtOnce(lambda index: index + 1000, 10)
        assert counts(samples(load(MixDataset([range(10), many], [1, 1])))) == [10, 10, 0]

    def test_a_mix_may_hold_arrays_and_numbers_of_any_library_are_weights(self):
        parts = [TensorDataset(np.arange(3)), TensorDataset(np.arange(1000, 1006))]
        arrays = MixDataset(parts, np.array([1, 2], np.float32))
        assert (arrays.weights.dtype, arrays.weights.tolist()) == (np.float64, [1, 2])
        assert counts([one for (batch,) in load(arrays) for one in batch.tolist()]) == [3, 6, 0]


class TestWeightsAreNotLost:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda mix: Subset(mix, [0, 1]), "a Subset would .* take subsets of its datasets first"),
            (lambda mix: random_split(mix, [0.5, 0.5]), "random_split would .* split its datasets first"),
            (lambda mix: ConcatDataset(["a", mix]), "a ConcatDataset would .* concatenate its datasets"),
            (lambda mix: mix + mix, "a ConcatDataset would .* concatenate its datasets first"),
            (lambda mix: ComposeDataset([mix, range(280)]), "a ComposeDataset would .* compose its datasets"),
            (lambda mix: MixDataset([mix, "ab"], [1, 1]), "a MixDataset would .* mix all datasets at once"),
        ],
    )
    def test_in_another_dataset(self, make, message):
        with pytest.raises(TypeError, match=message):
            make(mix())

    @pytest.mark.parametrize(
        ("name", "sampler"),
        [
            ("sampler", [20, 0, 81]),
            ("sampler", iter([3])),
            ("sampler", SequenceSampler(mix())),
            ("sampler", RandomSampler(mix())),
            ("sampler", mix(weights=(3, 2, 1)).default_sampler(shuffle=True)),
            ("batch_sampler", [[1, 2]]),
            ("batch_sampler", BatchSampler(mix(), shuffle=True, batch_size=4)),
            ("batch_sampler", DistributedBatchSampler(mix(), 4, 2, 0)),
        ],
    )
    def test_by_another_sampler(self, name, sampler):
        message = (
            f"the {name}, of type {type(sampler).__name__}, would read the MixDataset without its weights: "
            rf"leave it out, .*; for an order of your own, read ConcatDataset\(mix.datasets\)"
        )
        with pytest.raises(TypeError, match=message):
            load(mix(), shuffle=False, batch_size=1, **{name: sampler})

    def test_its_own_sampler_may_be_passed_and_a_copy_of_a_loader_mixes_too(self):
        wanted = samples(load(mix()))
        assert samples(pickle.loads(pickle.dumps(load(mix())))) == wanted
        made = mix().default_sampler(shuffle=True)
        assert samples(load(mix(), shuffle=False, sampler=made)) == wanted
        grouped = BatchSampler(sampler=made, batch_size=5)
        for whole in (grouped, load(mix()).batch_sampler):
            assert samples(load(mix(), shuffle=False, batch_size=1, batch_sampler=whole)) == wanted

        class Wrapping:
            batch_sampler = grouped

            def __iter__(self):
                return iter(grouped)

        found = samples(load(mix(), shuffle=False, batch_size=1, batch_sampler=Wrapping()))
        assert counts(found) == [20, 40, 60]


@pytest.mark.parametrize(
    ("datasets", "weights", "at_end", "message"),
    [
        ([], [], "stop", "datasets must hold at least one dataset"),
        (["a", ""], [1, 1], "stop", "dataset 1 is empty; leave it out of the mix"),
        (["a", "b"], [1], "stop", "weights must be one number per dataset: 2, got 1"),
        (["a", "b"], [], "stop", "weights must be one number per dataset: 2, got 0"),
        (["a", "b"], [1, 0], "stop", "weights must be finite and above 0, got 0.0 at index 1"),
        (["a", "b"], [1, -1], "stop", "weights must be finite and above 0, got -1.0 at index 1"),
        (["a", "b"], [1, np.nan], "stop", "weights must be finite and above 0, got nan at index 1"),
        (["a", "b"], "no", "stop", "weights must be a list of numbers"),
        (["a", "b"], None, "stop", "weights must be a list of numbers, got NoneType of shape"),
        (["a", "b"], [1, 1], "end", "at_end must be one of 'stop', 'repeat', 'drop', got 'end'"),
        (["a", "b"], [1, 1e-300], "repeat", "an epoch would have .* the weights are too far from"),
        ([range(2**51)] * 2, [1, 1], "stop", "an epoch would have 4.5e\\+15 samples"),
        ([IterableDataset()] * 2, [1], "stop", "weights must be one per dataset: 2, got 1"),
        ([IterableDataset()], [1], ["stop"] * 2, "at_end must be one per dataset: 1, got 2"),
        ([IterableDataset()], [1], "end", "at_end must be one of"),
    ],
)
def test_bad_values(datasets, weights, at_end, message):
    with pytest.raises(ValueError, match=message):
        MixDataset(datasets, weights, at_end=at_end)


@pytest.mark.parametrize("compose", [ConcatDataset, ComposeDataset, lambda parts: MixDataset(parts, [1, 1])])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": range(3), "b": range(3)}, "datasets must be a list of datasets, got a dict; pass its values"),
        (TensorDataset(np.zeros(2)), "datasets must be a list of datasets, got the dataset TensorDataset"),
        ("ab", "datasets must be a list of datasets, got the text 'ab'"),
        (["a", IterableDataset()], "dataset (1 must be map-style, got the Iter|0 must be iterable)"),
        ([IterableDataset(), "a"], "dataset (0 must be map-style, got the Iter|1 must be iterable)"),
    ],
)
def test_what_is_no_list_of_datasets(compose, parts, message):
    with pytest.raises(TypeError, match=message):
        compose(parts)


def test_the_description_tells_what_it_holds():
    assert len(mix()) == 280
    assert len(load(mix())) == 18  # batches of the 120 samples of an epoch
    assert repr(mix("repeat", weights=(1, 2.5, 3))) == (
        "<MixDataset: 280 samples of 3 datasets with the weights 1, 2.5, 3; 434 per epoch, at_end='repeat'>"
    )
    assert repr(MixDataset(["a"] * 20, np.ones(20))) == (
        "<MixDataset: 20 samples of 20 datasets with the weights 1, 1, 1, 1, 1, 1, 1, 1, …; 20 per epoch, "
        "at_end='stop'>"
    )


class Letters(IterableDataset):
    """Letters, or other items, divided among workers; some can tell their position."""

    def __init__(self, letters, keeps=False):
        self.letters = letters
        self.at = 0
        if keeps:
            self.state_dict = lambda: {"at": self.at}
            self.load_state_dict = lambda state: setattr(self, "start", state["at"])
        self.start = 0

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        start, self.start = self.start, 0
        for at, letter in enumerate(self.letters[first::step][start:], start + 1):
            self.at = at
            yield letter


def stream(count, start=0, **options):
    return Letters(range(start, start + count), **options)


load_stream = partial(loading.load, batch_size=7, seed=4)


def check_resuming(make, counts):
    """Check that a loader resumes after so many batches; return the samples of the whole epoch."""

    def read(loader):
        return [(batch["n"] if isinstance(batch, dict) else batch).tolist() for batch in loader]

    whole = read(make())
    for count in counts:
        _, again = loading.resume(make, count)
        assert read(again) == whole[count:]
    return [one for batch in whole for one in batch]


class TestStreams:
    @pytest.mark.parametrize(
        ("at_end", "times"),
        [
            ("drop", [1, 1, 1]),
            ("repeat", [2, 2, 1]),
            (["repeat", "drop", "drop"], [2, 1, 1]),
            (["drop", "repeat", "drop"], [1, 2, 1]),
        ],
    )
    def test_each_ends_or_repeats_as_asked(self, at_end, times):
        mixed = MixDataset([stream(100), stream(300, 1000), stream(310, 2000)], [2, 3, 2.5], at_end=at_end)
        found = samples(load_stream(mixed))
        for at, (size, count) in enumerate(zip((100, 300, 310), times, strict=True)):
            own = [one for one in found if one // 1000 == at]
            assert own[:size] == list(range(1000 * at, 1000 * at + size))
            assert (len(own) > size) is (count > 1)

    def test_one_that_stops_ends_the_epoch(self):
        mixed = MixDataset([stream(1000), stream(9000, 10_000)], [1, 3], at_end=["stop", "drop"])
        found = np.array(samples(load_stream(mixed)))
        assert np.bincount(found // 10_000)[0] == 1000
        for start in range(0, 3072, 1024):  # every block of turns has the shares
            assert abs((found[start : start + 1024] < 10_000).sum() - 256) <= 1
        assert samples(load_stream(mixed)) == found.tolist() != samples(load_stream(mixed, seed=5))

    @pytest.mark.parametrize("workers", [*WORKERS, PROCESSES], ids=name_workers)
    @pytest.mark.parametrize("keeps", [False, True])
    def test_it_resumes_in_mid_epoch_whoever_reads(self, workers, keeps):
        def make():
            parts = [stream(30, keeps=keeps), stream(200, 1000, keeps=keeps)]
            return load_stream(MixDataset(parts, [1, 2], at_end="repeat"), **workers)

        counts = (9,) if workers is PROCESSES else (1, 9, 20)
        assert set(check_resuming(make, counts)) == {*range(30), *range(1000, 1200)}

    def test_ranks_divide_it(self):
        def make(**options):
            return load_stream(MixDataset([stream(30), stream(90, 1000)], [1, 2], at_end="drop"), **options)

        shares = [samples(make(shard=(rank, 2), uneven="drop")) for rank in range(2)]
        assert sorted(shares[0] + shares[1]) == sorted(samples(make()))[: sum(map(len, shares))]

    def test_a_worker_without_a_share_goes_on_with_the_others(self):
        mixed = MixDataset([stream(1), stream(40, 1000)], [1, 1], at_end="repeat")
        loader = load_stream(mixed, num_workers=2, worker_type="thread")
        assert set(samples(loader)) == {0, *range(1000, 1040)}
        assert samples(load_stream(MixDataset([stream(0), stream(0)], [1, 1], at_end="repeat"))) == []

    @pytest.mark.parametrize("kind", ["tar", "parquet"])
    def test_a_stream_that_is_listed_twice_is_read_at_two_positions(self, folder, kind):
        def make():
            tar = TarDataset(folder / "*.tar", take_number)
            one = tar if kind == "tar" else ParquetDataset(folder / "b.parquet")
            return load_stream(MixDataset([one, one], [1, 3], at_end="drop"))

        numbers = range(2000, 2048) if kind == "tar" else range(1000, 1090)
        assert sorted(check_resuming(make, range(1, 13, 3))) == sorted([*numbers] * 2)

    def test_a_stream_that_is_repeated_shuffles_anew(self, folder):
        rows = ParquetDataset(folder / "b.parquet", shuffle=True, shuffle_buffer=90)
        mixed = MixDataset([rows, Letters([{"n": 0}] * 400)], [1, 1], at_end=["repeat", "stop"])
        found = [one for batch in load_stream(mixed) for one in batch["n"].tolist() if one]
        assert sorted(found[:90]) == sorted(found[90:180]) == list(range(1000, 1090))
        assert found[:90] != found[90:180] != list(range(1000, 1090))

    def test_a_state_of_other_streams_is_refused(self):
        with pytest.raises(ValueError, match="not the state of a mix of 1 streams"):
            MixDataset([stream(3)], [1]).load_state_dict({"drawn": 3, "streams": [[], []]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files with the numbers from 0 (a.parquet), 1000 (b.parquet), 2000 (tar) and 3000 (CSV) on."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    made = tmp_path_factory.mktemp("streams")
    pq.write_table(pa.table({"n": range(150)}), made / "a.parquet", row_group_size=7)
    pq.write_table(pa.table({"n": range(1000, 1090)}), made / "b.parquet", row_group_size=4)
    for shard in range(6):
        rows = range(2000 + 8 * shard, 2008 + 8 * shard)
        write_tar(made / f"{shard}.tar", [(f"{row}.n", str(row).encode()) for row in rows])
    (made / "d.csv").write_text("n\n" + "".join(f"{row}\n" for row in range(3000, 3070)))
    return made


def take_number(sample):
    return {"n": int(sample["n"])}


SIZES = [150, 90, 48, 70]


def load_files(folder, at_end, workers, size, buffer=None, weights=(3, 2, 1, 2), **options):
    """Return a loader over a mix of as many files as there are words in `at_end`."""
    shuffled = {"shuffle": True, "shuffle_buffer": buffer}
    parts = [
        ParquetDataset(folder / "a.parquet"),
        ParquetDataset(folder / "b.parquet", **shuffled),
        TarDataset(folder / "*.tar", take_number, **shuffled),
        CSVDataset(folder / "d.csv", filters=[("n", ">=", 3000)]),
    ][: len(at_end)]
    how = {"num_workers": workers, "start_method": "fork"} if workers > 1 else {}
    mixed = MixDataset(parts, weights[: len(at_end)], at_end=at_end)
    return loading.load(mixed, batch_size=size, seed=4, **how, **options)


def check_times(found, at_end):
    """Check that a mix of files has yielded each number as often as its streams are to be read."""
    times = np.bincount(found, minlength=4000)
    for at, word in enumerate(at_end):
        own = times[1000 * at : 1000 * at + SIZES[at]]
        if word == "repeat" and "stop" not in at_end:
            assert (own >= 1).all()
        elif word == "drop" and "stop" not in at_end:
            assert (own == 1).all()
        elif word != "repeat":
            assert (own <= 1).all()
    assert times.sum() == sum(times[1000 * at : 1000 * at + SIZES[at]].sum() for at in range(len(at_end)))


@settings(max_examples=settings.default.max_examples // 4)  # each reads up to three times, with workers
@given(
    at_end=st.lists(st.sampled_from(["drop", "repeat", "stop"]), min_size=1, max_size=4),
    buffer=st.none() | st.integers(1, 20),
    legs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(0, 8)), max_size=2),
    workers=st.integers(1, 4),
)
def test_other_workers_and_batches_continue_a_mix_of_files(folder, at_end, buffer, legs, workers):
    found, state = [], None
    for count_of_workers, size, count in legs:
        if state is not None and state["epoch"]:
            break
        more, state = leave(load_files(folder, at_end, count_of_workers, size, buffer), count, state)
        found += more
    if state is None or not state["epoch"]:
        found += leave(load_files(folder, at_end, workers, 5, buffer), None, state)[0]
    check_times(found, at_end)


@contextmanager
def being(rank, ranks):
    """Be a rank, as a launcher would say."""
    with mock.patch.dict(os.environ, {"RANK": str(rank), "WORLD_SIZE": str(ranks)}):
        yield


def leave_ranks(ranks, count, states, *how):
    """Leave the loaders of all ranks after some batches, or None for all of them."""
    left = []
    for rank in range(ranks):
        with being(rank, ranks):
            left.append(leave(load_files(*how), count, states))
    return [number for found, _ in left for number in found], [state for _, state in left]


@settings(max_examples=settings.default.max_examples // 4)
@given(
    at_end=st.lists(st.sampled_from(["drop", "repeat", "stop"]), min_size=1, max_size=3),
    buffer=st.none() | st.integers(1, 20),
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    legs=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([1, 1, 1, 2]), st.integers(1, 40), st.integers(0, 8)),
        min_size=1,
        max_size=3,
    ),
    ranks=st.integers(1, 4),
)
def test_other_ranks_continue_a_mix_of_files(folder, at_end, buffer, weights, legs, ranks):
    found, states = [], None
    for ranks_of_leg, workers, size, count in [*legs, (ranks, 1, 5, None)]:
        how = (folder, at_end, workers, size, buffer, weights)
        more, states = leave_ranks(ranks_of_leg, count, states, *how)
        found += more
        if all(state["epoch"] for state in states):
            break
    check_times(found, at_end)


@pytest.mark.parametrize("legs", [(3, 2), (1, 4), (4, 1)], ids=str)
def test_the_stream_that_ends_a_mix_is_read_once_and_the_shares_stay(folder, legs):
    at_end = ["drop", "stop"]
    first, state = leave(load_files(folder, at_end, legs[0], 4), 14, None)
    rest, _ = leave(load_files(folder, at_end, legs[1], 3), None, state)
    times = np.bincount(first + rest, minlength=1090)
    assert (times[1000:] == 1).all()
    assert times[:1000].max() == 1
    # Where few parts are left of the stream that ends the mix, nobody reads on without it.
    assert abs(times[:1000].sum() - 1.5 * 90) <= 40


def test_a_mix_that_is_being_read_is_pickled_without_its_pass(folder):
    mixed = load_files(folder, ["drop"] * 2, 1, 4).dataset
    begun = iter(mixed)
    next(begun)
    assert len([*pickle.loads(pickle.dumps(mixed))]) == 150 + 90


def test_a_mix_that_others_cannot_continue_says_so(folder):
    def mixed(workers):
        streams = MixDataset([stream(90), stream(90, 1000)], [1, 2], at_end="drop")
        return load_stream(streams, num_workers=workers, start_method="fork" if workers else "auto")

    loader = mixed(2)
    epoch = iter(loader)
    next(epoch)
    state = loader.state_dict()
    epoch.close()
    with pytest.raises(ValueError, match=r"read by 2 workers, but .* use the same num_workers to resume"):
        mixed(3).load_state_dict(state)
    how = folder, ["drop"] * 2, 1, 4
    _, states = leave_ranks(2, 3, None, *how)
    for rank, size in ((0, 3), (1, 2)):
        with being(rank, size), pytest.raises(ValueError, match="a list of the states of all ranks, or make"):
            leave(load_files(*how), 1, states[0])


def test_what_is_not_the_list_of_all_states_is_refused(folder):
    how = folder, ["drop"] * 2, 1, 4
    _, states = leave_ranks(2, 3, None, *how)
    with being(0, 3):
        with pytest.raises(ValueError, match="state 0 of 2 is that of rank 1 of 2: pass the states of all"):
            load_files(*how).load_state_dict(states[::-1])
        with pytest.raises(ValueError, match="state 0 of 4 is that of rank 0 of 2: pass the states of all"):
            load_files(*how).load_state_dict(states * 2)
        _, other = leave(load_files(folder, ["drop"] * 2, 2, 4), 1, None)
        with pytest.raises(ValueError, match=r"in the epochs .0., and there are 3 now: only datasets"):
            load_files(*how).load_state_dict([states[0], other])
        with pytest.raises(ValueError, match="with shard=, the states of all ranks are alike"):
            load_files(*how, shard=(0, 3)).load_state_dict(states)
        with pytest.raises(TypeError, match="a state must be a dict"):
            load_files(*how).load_state_dict([])
