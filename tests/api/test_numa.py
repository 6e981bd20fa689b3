"""A loader on a machine with two NUMA nodes: slots and workers are on the cores near its GPU."""

import os

import numpy as np
import pytest

from gpuloader import DataLoader, staging
from gpuloader.epoch import delivery
from gpuloader.system import cores as numa
from gpuloader.testing import CustomPlace, SimulatedDevice
from tests.sample_sets import Made
from tests.system.test_cores import BUS, make_machine

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores and affinity")


def look(index):
    """Return the number of cores that the reader of a sample may use, and the first of them."""
    cores = sorted(os.sched_getaffinity(0))
    return np.array([len(cores), cores[0]])


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Put the last core of this machine on a node of its own, and the GPU there; return the core."""
    make_machine(tmp_path, nodes=(",".join(map(str, CORES[:-1])), str(CORES[-1])))
    monkeypatch.setattr(delivery, "find_cores_near", lambda bus_ids: numa.find_cores_near(bus_ids, tmp_path))
    return CORES[-1]


@pytest.fixture
def mapped(monkeypatch):
    """Return a list of the cores on which the memory of each arena of slots is written first."""
    cores, original = [], staging.Arena._map

    def note(self, nbytes, *arguments):
        if nbytes > 8:  # what worker processes are told of an epoch
            cores.append(sorted(os.sched_getaffinity(0)))
        return original(self, nbytes, *arguments)

    monkeypatch.setattr(staging.Arena, "_map", note)
    return cores


def place(bus_id=BUS):
    return CustomPlace(SimulatedDevice(bus_id=bus_id))


def read(**options):
    return {
        tuple(row)
        for batch in DataLoader(Made(look, 4), batch_size=2, **options)
        for row in np.array(batch).tolist()
    }


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_and_slots_are_near_the_gpu(machine, mapped, kind):
    assert read(places=place(), num_workers=1, worker_type=kind) == {(1, machine)}
    assert mapped == [[machine]]
    assert sorted(os.sched_getaffinity(0)) == CORES
    # More workers than cores there use all cores.
    everywhere = {(len(CORES), CORES[0])}
    assert read(places=place(), num_workers=len(CORES), worker_type=kind) == everywhere
    assert mapped == [[machine]] * 2


def test_the_calling_thread_is_left_alone(machine, mapped):
    """The user's thread runs where the user wants, but its slots lie near the GPU."""
    assert read(places=place(), use_buffer_reader=False) == {(len(CORES), CORES[0])}
    assert mapped == [[machine]]


def test_readers_have_their_slots_there(machine, mapped):
    loader = DataLoader.from_generator(capacity=2, return_list=True)
    loader.set_batch_generator(lambda: ([np.zeros(3)] for _ in range(3)), places=place())
    assert len(list(loader)) == 3
    assert mapped == [[machine]]


def test_a_cpu_place_and_an_unknown_gpu_are_bound_to_nothing(machine, mapped):
    for where in ("cpu", place("0000:00:00.0")):
        assert read(places=where, num_workers=1, worker_type="thread") == {(len(CORES), CORES[0])}
    assert mapped == [CORES, CORES]


def test_an_affinity_of_the_user_wins(machine, mapped):
    os.sched_setaffinity(0, CORES[:1])
    try:
        assert read(places=place(), num_workers=1, worker_type="thread") == {(1, CORES[0])}
        assert mapped == [CORES[:1]]
    finally:
        os.sched_setaffinity(0, CORES)
