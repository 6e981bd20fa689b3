"""The environment of a worker: its number, its seeds, its init function, and no GPU."""

import os
import random
import sys

import numpy as np
import pytest

from gpuloader import get_worker_info
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, FaultyStream, loader

METHODS = ["forkserver", "fork", "spawn"]


@pytest.fixture(autouse=True)
def nothing_left():
    with faulty.all_gone():
        yield


class Witness(Faulty):
    """Samples that identify the worker that fetched them."""

    def __getitem__(self, index):
        info = get_worker_info()
        return index, info.id, info.num_workers, info.seed, info.dataset is self, os.getpid()


class WitnessStream(FaultyStream):
    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, 24, info.num_workers):
            yield index, info.id, info.num_workers, info.seed, info.dataset is self, os.getpid()


def table(epoch):
    return np.concatenate([np.stack(batch, 1) for batch in epoch])


@pytest.mark.parametrize("kind", [Witness, WitnessStream])
@pytest.mark.parametrize("method", METHODS[:2])
def test_worker_info(method, kind):
    one = loader(kind(), start_method=method, persistent_workers=True)
    first, second = table(one), table(one)
    one.close()
    for rows in (first, second):
        assert sorted(rows[:, 0].tolist()) == list(range(24))
        assert set(rows[:, 1].tolist()) == {0, 1}
        assert set(rows[:, 2].tolist()) == {2}
        assert rows[:, 4].all()
        assert len({tuple(row) for row in rows[:, [1, 3, 5]].tolist()}) == 2  # one seed per worker
    seeds = [set(rows[:, 3].tolist()) for rows in (first, second)]
    assert len(seeds[0] | seeds[1]) == 4  # and per epoch
    assert set(first[:, 5].tolist()) == set(second[:, 5].tolist())
    assert os.getpid() not in first[:, 5]
    again = loader(kind(), start_method=method)
    assert {(row[1], row[3]) for row in table(again).tolist()} == {(row[1], row[3]) for row in first.tolist()}
    other = loader(kind(), start_method=method, seed=8)
    assert not {row[3] for row in table(other).tolist()} & (seeds[0] | seeds[1])


def note_call(path, number):
    with open(path, "a") as file:
        file.write(f"{number} {os.getpid()}\n")


@pytest.mark.parametrize("method", METHODS[:2])
@pytest.mark.parametrize("persistent", [True, False])
def test_the_init_function_is_called_once_a_worker(method, persistent, tmp_path):
    path = tmp_path / "calls"
    one = loader(
        Faulty(),
        start_method=method,
        persistent_workers=persistent,
        worker_init_fn=faulty.partial(note_call, str(path)),
    )
    for _ in range(3):
        list(one)
    one.close()
    calls = [line.split() for line in path.read_text().splitlines()]
    processes = 1 if persistent else 3
    assert sorted(number for number, _ in calls) == sorted(["0", "1"] * processes)
    assert len({pid for _, pid in calls}) == 2 * processes


class Drawing(Faulty):
    """Samples drawn from the global random generators."""

    def __getitem__(self, index):
        return np.array([index, np.random.random(), random.random(), np.random.randint(1 << 30)])


def test_draws_are_the_same_for_any_number_of_workers():
    def draw(**options):
        return np.concatenate(list(loader(Drawing(), shuffle=True, **options)))

    expected = draw(num_workers=1)
    assert len(np.unique(expected[:, 1])) == 24
    for count in (2, 3):
        np.testing.assert_array_equal(draw(num_workers=count), expected)
    np.testing.assert_array_equal(draw(start_method="fork"), expected)
    assert not (draw(seed=8)[:, 1] == expected[:, 1]).any()


def test_draws_differ_between_epochs():
    one = loader(Drawing(), persistent_workers=True)
    first, second = (np.concatenate(list(one)) for _ in range(2))
    np.testing.assert_array_equal(first[:, 0], second[:, 0])
    assert not (first[:, 1:] == second[:, 1:]).any()
    one.close()


class Surroundings(Faulty):
    def __getitem__(self, index):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        return hidden, "cupy" in sys.modules


@pytest.mark.parametrize("method", METHODS)
def test_no_gpu_in_a_worker(method, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for hidden, has_cupy in loader(Surroundings(), start_method=method):
        assert hidden.all()
        if method != "fork":  # a forked worker inherits the modules of the tests
            assert not has_cupy.any()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
