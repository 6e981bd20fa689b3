"""`warm_up`: what the first batch costs is paid when the user asks for it, and nothing else changes."""

import gc
import itertools
import os

import numpy as np
import pytest

from gpuloader import DataLoader, TensorDataset, prefetch
from gpuloader.devices import cuda
from gpuloader.errors import Misuse, StagingMemoryError
from gpuloader.testing import CustomPlace, SimulatedDevice, simulated_places
from gpuloader.transforms import Cast
from tests.api.streams import Items
from tests.fakes import loader_threads, nothing_left_behind, wait_until
from tests.fakes_cuda import FakeRuntime, make_cupy, run_twins, use_cupy
from tests.loading import resume
from tests.sample_sets import Made

NUMBERS = np.arange(12)


def values(loader):
    return [np.array(batch).tolist() for batch in loader]


def check_nothing_changes(make):
    """Check that loaders from `make` yield the same batches and states with `warm_up` as without."""
    loader = make()
    wanted = [values(loader) for _ in range(3)]
    loader = make()
    before = loader.state_dict()
    loader.warm_up()
    assert loader.state_dict() == before
    loader.set_epoch(0)  # which is next, and drops nothing
    epoch = iter(loader)
    begun = [np.array(next(epoch)).tolist()]
    after = loader.state_dict()
    loader.warm_up()  # a loop in progress goes on
    loader.warm_up()
    assert loader.state_dict() == after
    assert begun + values(epoch) == wanted[0]
    assert [values(loader), values(loader)] == wanted[1:]


def check_the_first_step_is_read_once(wrap):
    reads = []
    dataset = Made(lambda index: reads.append(index) or index, 12)
    loader = wrap(DataLoader(dataset, places=simulated_places(1), batch_size=3, use_buffer_reader=False))
    for _ in range(2):
        loader.warm_up()
        if isinstance(loader, DataLoader):
            loader.set_epoch(0)  # which is next, and drops nothing
        assert (len(reads), loader.stats().batches, loader.stats().steps) == (3, 1, 0)
    assert len(values(loader)) == 4
    assert len(reads) == 12


def check_what_does_not_come_next_is_dropped(make):
    """Check that a loop after `warm_up` and another state or epoch is as it would have been."""
    wanted = [values(loader) for loader in [make()] for _ in range(3)]
    _, other = resume(make, 2)
    state, loader = other.state_dict(), make()
    loader.warm_up()
    loader.load_state_dict(state)
    assert values(loader) == wanted[0][2:]
    loader.load_state_dict(state)
    loader.warm_up()
    assert loader.state_dict() == state
    assert values(loader) == wanted[0][2:]
    loader.warm_up()
    loader.set_epoch(2)
    assert loader.state_dict()["epoch"] == 2
    assert values(loader) == wanted[2]


@pytest.fixture(params=["cpu", "simulated", "two"])
def places(request):
    return {"cpu": "cpu", "simulated": simulated_places(1), "two": simulated_places(2)}[request.param]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "worker_type": "thread"}, {"use_buffer_reader": False}], ids=str
)
def test_batches_order_and_state_stay_the_same(places, options):
    options = {"places": places, "batch_size": 2, "shuffle": True, "seed": 4, **options}
    check_nothing_changes(lambda: DataLoader(NUMBERS, **options))


def test_the_first_step_is_there_and_is_read_once():
    check_the_first_step_is_read_once(lambda loader: loader)
    empty = DataLoader(NUMBERS[:0], places="cpu", batch_size=2)
    empty.warm_up()
    assert [values(empty), values(empty)] == [[], []]


def test_a_loop_then_allocates_nothing(monkeypatch):
    cupy = pytest.importorskip("cupy")
    runtime = FakeRuntime()
    with use_cupy(monkeypatch, make_cupy(cupy, runtime)):
        run_twins(monkeypatch, runtime)
        rows = TensorDataset(np.arange(64, dtype=np.float32).reshape(32, 2))
        for options in ({}, {"cache": "device"}, {"static": True}, {"transforms": [Cast("0", "int16")]}):
            loader = DataLoader(rows, places="gpu:0", batch_size=2, **options)
            loader.warm_up()
            before = {**runtime.calls}
            for batch in loader:
                del batch
            for call in ("malloc", "free", "hostRegister", "streamCreate"):
                assert runtime.calls[call] == before.get(call, 0), (options, call)
            assert before["memcpyAsync"]
            del loader
            gc.collect()
        assert cuda.cupy is not cupy


def test_a_state_loaded_afterwards_comes_first_with_fixed_addresses():
    loader = DataLoader(NUMBERS, places=simulated_places(1), batch_size=2, static=True)
    steps = iter(loader)
    next(steps)
    state = loader.state_dict()
    expected = np.asarray(next(steps)).tolist()
    del steps
    loader.warm_up()
    loader.load_state_dict(state)
    assert np.asarray(next(iter(loader))).tolist() == expected


def test_the_host_has_waited_for_the_copy():
    place = CustomPlace(SimulatedDevice(copy_time=lambda nbytes: 7.0))
    loader = DataLoader(NUMBERS, places=place, batch_size=2)
    loader.warm_up()
    assert place.device.now == 7.0


def test_workers_have_started():
    loader = DataLoader(Made(lambda index: os.getpid(), 4), places="cpu", batch_size=2, num_workers=1)
    loader.warm_up()
    assert loader.stats().batches
    found = {pid for batch in loader for pid in batch.tolist()}
    assert len(found) == 1
    assert os.getpid() not in found


class TestWhatChangesTheNextEpoch:
    """Then what was prepared is dropped, and the loop is as it would have been."""

    def test_a_state_or_an_epoch(self, places):
        options = {"places": places, "batch_size": 2, "shuffle": True, "seed": 4}
        check_what_does_not_come_next_is_dropped(lambda: DataLoader(NUMBERS, **options))

    def test_another_source(self, places):
        loader = DataLoader.from_generator(capacity=2, return_list=True)
        for source in (1, 2):
            loader.set_batch_generator(lambda source=source: ([[source]] for _ in range(2)), places=places)
            loader.warm_up()
            assert loader.state_dict()["epoch"] == 0
        steps = [step if len(step) > 1 else [step] for step in loader]
        assert {int(np.array(array)[0]) for step in steps for [array] in step} == {2}


def test_errors_of_the_source_are_raised_by_the_loop(places):
    def read():
        yield [[1]]
        raise KeyError("broken")

    loaders = [
        DataLoader(Items(lambda: (entry for [entry] in read())), places=places, batch_size=1),
        DataLoader.from_generator(capacity=2).set_batch_generator(read, places=places),
        DataLoader([5, "x"], places=places, batch_size=2),
        prefetch(itertools.islice(read(), 1, None), places),
    ]
    for loader in loaders:
        loader.warm_up()
        with pytest.raises((KeyError, RuntimeError), match=r"broken|text"):
            list(loader)


@pytest.mark.parametrize("wrap", [lambda loader, places: loader, prefetch])
def test_nothing_is_left_behind(places, wrap):
    """By a loader that is never looped over, or whose device has too little memory."""
    options = {"batch_size": 2, "num_workers": 2, "worker_type": "thread"}
    with nothing_left_behind():
        loader = wrap(DataLoader(NUMBERS, places=places, **options), places)
        loader.warm_up()
        del loader
        gc.collect()
        wait_until(lambda: not loader_threads())  # a reading thread may hold the epoch for a moment
    small = CustomPlace(SimulatedDevice(memory_limit=8))
    with pytest.raises(StagingMemoryError) as raised:
        DataLoader(NUMBERS, places=small, batch_size=2, use_buffer_reader="thread").warm_up()
    assert not loader_threads()
    del raised


def test_a_loader_driven_by_hand():
    loader = DataLoader.from_generator(capacity=2, iterable=False)
    with pytest.raises(Misuse, match="no source"):
        loader.warm_up()
    loader.set_batch_generator(lambda: ([[number]] for number in range(2)), places="cpu")
    loader.warm_up()
    loader.start()
    assert [next(loader)[0].tolist(), next(loader)[0].tolist()] == [[0], [1]]


class TestPrefetched:
    """`prefetch(...)` has `warm_up` too, whatever it wraps."""

    @staticmethod
    def wrap(kind, places, **options):
        inner = NUMBERS.reshape(6, 2)
        if kind == "loader":
            inner = DataLoader(NUMBERS, places="cpu", batch_size=2, shuffle=True, seed=4)
        return prefetch(inner, places, **options)

    @pytest.mark.parametrize("kind", ["list", "loader"])
    @pytest.mark.parametrize("ahead", [0, 2])
    def test_batches_order_and_state_stay_the_same(self, places, kind, ahead):
        check_nothing_changes(lambda: self.wrap(kind, places, prefetch=ahead))

    def test_the_first_step_is_there_and_is_read_once(self):
        check_the_first_step_is_read_once(lambda inner: prefetch(inner, simulated_places(1), prefetch=0))
        loader = prefetch(iter(range(3)), "cpu")
        loader.warm_up()
        assert list(loader) == [0, 1, 2]

    @pytest.mark.parametrize("kind", ["list", "loader"])
    def test_a_step_that_does_not_come_next_is_dropped(self, kind):
        check_what_does_not_come_next_is_dropped(lambda: self.wrap(kind, "cpu"))
