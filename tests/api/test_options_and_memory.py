"""Memory follows the data and not the options: whatever an option allows, little data needs little memory."""

import re
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpuloader import DataLoader, SampleError, StagingMemoryError
from gpuloader.batches import items
from gpuloader.testing import simulated_places
from tests.api.streams import Items
from tests.fakes import nothing_left_behind
from tests.loading import load
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, Made, assert_same, name_workers, stack

HUGE = 10**9
NBYTES = 400 << 20
"""Much more than Python and twenty samples, and much less than what the options would allow."""

PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from tests.api.test_options_and_memory import CASES, NBYTES, peak
for name, case in CASES.items():
    assert sum(case()) == 20, name
    assert peak() < NBYTES, (name, peak())
"""


COUNTED = Made(partial(np.full, 4), 20)


def twenty():
    return map(partial(np.full, 4), range(20))


def peak():
    """Return the bytes that this process or one of its children had in memory at most.

    `RUSAGE_SELF` would count what the process had before it ran its program: the memory of its parent.
    """
    own = int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10


def count(dataset, **options):
    """Yield the number of samples of each batch."""
    yield from map(len, DataLoader(dataset, **{"places": "cpu", **options}))


def count_read(capacity=2, **options):
    loader = DataLoader.from_generator(capacity=capacity, return_list=True)
    loader.set_sample_generator(
        lambda: ((sample,) for sample in twenty()), places="cpu", drop_last=False, **options
    )
    yield from (len(batch) for (batch,) in loader)


def depths(factor):
    """Return loaders with this prefetch_factor."""
    return {
        "depth, in a process": lambda: count(COUNTED, prefetch_factor=factor, **PROCESS),
        "depth, in a thread": lambda: count(COUNTED, prefetch_factor=factor, **ONE_THREAD),
        "depth": lambda: count(COUNTED, prefetch_factor=factor),
        "depth of items, in a process": lambda: count(Items(twenty), prefetch_factor=factor, **PROCESS),
        "depth of items, in a thread": lambda: count(Items(twenty), prefetch_factor=factor, **ONE_THREAD),
    }


PROCESS = {"num_workers": 1}
CASES = {
    "a batch, in a process": lambda: count(COUNTED, batch_size=HUGE, **PROCESS),
    "a batch of a range, in a process": lambda: count(range(20), batch_size=HUGE, **PROCESS),
    "a batch, in a thread": lambda: count(COUNTED, batch_size=HUGE, **ONE_THREAD),
    "a batch": lambda: count(COUNTED, batch_size=HUGE),
    "a batch of items": lambda: count(Items(twenty), batch_size=10**7),
    "a batch of items, in a process": lambda: count(Items(twenty), batch_size=10**7, **PROCESS),
    "a batch of items with text": lambda: count(map(str, range(20)), batch_size=HUGE),
    "a reader's batch": lambda: count_read(batch_size=10**7),
    "a reader's capacity": lambda: count_read(capacity=10**6, batch_size=1),
    "steps on a device": lambda: count(COUNTED, places=simulated_places(1), prefetch=10**6),
    **depths(10**6),
}
REFUSED = {
    "a batch of items": lambda: count(Items(twenty), batch_size=HUGE * HUGE),
    "a batch of items, in a process": lambda: count(Items(twenty), batch_size=HUGE * HUGE, **PROCESS),
    "a reader's batch": lambda: count_read(batch_size=HUGE * HUGE),
    **depths(HUGE * HUGE),
}


def test_twenty_samples_need_the_memory_of_twenty_samples():
    """One case after the other in one program: its peak is a bound for each of them."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", REFUSED)
def test_more_than_all_memory_is_one_error_at_once(case):
    message = "lower the batch size, prefetch_factor or"
    with nothing_left_behind(), pytest.raises(StagingMemoryError, match=message):
        next(REFUSED[case]())


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
def test_many_batches_beyond_the_first_slots(workers, drop_last):
    """Slots that are reserved later are like the first ones, also if the user keeps all batches."""
    loader = load(COUNTED, batch_size=3, drop_last=drop_last, prefetch_factor=300, **workers)
    wanted = [np.stack([np.full(4, index) for index in range(at, min(at + 3, 20))]) for at in range(0, 20, 3)]
    for _ in range(2):
        assert_same(list(loader), wanted[:6] if drop_last else wanted)


@pytest.fixture
def small_blocks(monkeypatch):
    """Make batches of eight larger than what is reserved before their samples have arrived."""
    monkeypatch.setattr(items, "AT_ONCE", 100)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD], ids=name_workers)
@pytest.mark.parametrize("length", [1, 7, 8, 9, 24, 29])
def test_large_batches_of_items_are_whole(workers, length, drop_last):
    pairs = [{"x": np.full((2, 3), index, "f4"), "name": str(index), "n": index} for index in range(length)]
    wanted = [stack(pairs[at : at + 8]) for at in range(0, length - 7 * drop_last, 8)]
    loader = load(Items(lambda: pairs), batch_size=8, drop_last=drop_last, **workers)
    for _ in range(2):
        assert_same(list(loader), wanted)


@pytest.mark.usefixtures("small_blocks")
def test_an_error_in_a_large_batch_names_its_sample():
    with pytest.raises(SampleError, match=r"expected shape \(3,\)") as caught:
        list(load(Items(lambda: [np.zeros(3)] * 13 + [np.zeros(4)]), batch_size=8))
    assert (caught.value.batch, caught.value.index) == (1, 5)
