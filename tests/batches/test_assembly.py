"""Assembly: each sample's bytes are written once, straight into the slot, by the thread that fetches it."""

import threading
import tracemalloc

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.batches.assembly import Assembler
from gpuloader.batches.items import BatchSpec
from gpuloader.batches.schema import Collation
from gpuloader.sources.describing import describe
from gpuloader.staging import Slot
from tests.loading import make_slot
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, Made, name_workers


class Witness(np.ndarray):
    """A slot's view that records what is written into it."""

    def __setitem__(self, where, value):
        self.written.append((where, value))
        self.view(np.ndarray)[where] = value


class WatchedSlot(Slot):
    """A slot whose views are witnesses."""

    __slots__ = ("written",)

    def views(self, layout):
        if layout is not self._layout:
            self.written = []
            views = super().views(layout)
            for place, view in enumerate(views):
                watched = view.view(Witness)
                watched.written = self.written
                views[place] = watched
        return super().views(layout)


def watch_slots():
    """Return a list, and a function that reserves slots whose views are witnesses, and appends them to it."""
    slots = []

    def reserve(nbytes):
        slots.append(make_slot(nbytes, WatchedSlot))
        return slots[-1]

    return slots, reserve


def test_each_sample_is_written_once_and_from_where_it_lies():
    """No array is created between the dataset's sample and its row in the slot."""
    samples = [np.full((4, 3), index) for index in range(6)]
    assembler = Assembler(describe(samples), Collation())
    slots, reserve = watch_slots()
    for number, indices in enumerate([range(6), [5, 3], np.array([1, 1, 0])]):
        staged = assembler.assemble(number, indices, reserve)
        written = staged.slot.written
        assert [row for row, _ in written] == list(range(len(indices)))
        assert all(value is samples[index] for (_, value), index in zip(written, indices, strict=True))
    assert len(slots) == 3  # one slot is reserved per batch


MEBIBYTE = 1 << 20


class Large:
    """Samples that exist already, so that the memory of a batch built outside the slot would show up."""

    def __init__(self, shape, count=64):
        self.arrays = [np.full(shape, index, np.float32) for index in range(4)]
        self.count = count

    def __getitem__(self, index):
        return {"x": self.arrays[index % 4], "y": index}

    def __len__(self):
        return self.count


SHAPES = {"flat": (MEBIBYTE // 16,), "a picture": (4, 64, 256), "varying": (MEBIBYTE // 16,)}


@pytest.mark.parametrize("case", SHAPES)
def test_assembly_needs_no_memory_of_the_size_of_a_batch(case):
    """Runs the same code as a worker process; a sample has 256 KiB, a batch 4 MiB."""
    collation = Collation(ragged=frozenset(["x"])) if case == "varying" else Collation()
    assembler = BatchSpec(describe(Large(SHAPES[case])), collation, 16).make_assembler(worker=0)
    slot = make_slot(8 * MEBIBYTE)
    assembler.assemble(0, range(16), lambda nbytes: slot)
    tracemalloc.start()
    try:
        for number in range(1, 4):
            staged = assembler.assemble(number, range(16 * number, 16 * number + 16), lambda nbytes: slot)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEBIBYTE // 16
    views = slot.views(staged.layout)
    assert views[0].reshape(16, -1)[:, ::1000].min(1).tolist() == [0, 1, 2, 3] * 4
    assert views[-1].tolist() == list(range(48, 64))


@pytest.mark.parametrize("choice", [INLINE, ONE_THREAD, THREADS], ids=name_workers)
def test_a_loader_needs_no_memory_of_the_size_of_a_batch(choice):
    loader = DataLoader(Large(SHAPES["a picture"]), places="cpu", batch_size=16, **choice)
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(4):  # an early one reserves the slots, and reading ahead may import its modules in any
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for batch in loader:
                assert batch["x"].nbytes == 4 * MEBIBYTE
                del batch
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert min(peaks) < MEBIBYTE // 4


def test_a_batch_of_a_process_lies_in_the_mapping_it_wrote_to():
    loader = DataLoader(Large((3, 8, 8)), places="cpu", batch_size=4, **PROCESSES)
    for batch in loader:
        address = batch["x"].ctypes.data
        with open("/proc/self/maps") as maps:
            lines = [line.split() for line in maps if "memfd:gpuloader-arena" in line]
        ranges = [[int(end, 16) for end in line[0].split("-")] for line in lines]
        assert any(start <= address < stop for start, stop in ranges)
        assert all("s" in line[1] for line in lines)
        break


def test_a_part_writes_its_samples_as_soon_as_the_form_is_settled():
    """A part that was fetched in the meantime keeps only the samples that came before the schema."""
    first_is_written, second_is_fetched = threading.Event(), threading.Event()
    written = []

    def make(index):
        if index == 0:
            assert second_is_fetched.wait(60)
        if index == 2:
            second_is_fetched.set()
            assert first_is_written.wait(60)
        if index == 3:
            written.extend(slots[0].written)
        return np.full((2, 2), index)

    slots, reserve = watch_slots()
    assembly = Assembler(describe(Made(make)), Collation()).begin(0, range(4), reserve)
    late = threading.Thread(target=assembly.fetch, args=(2, 4))
    late.start()
    assembly.fetch(0, 2)
    first_is_written.set()
    late.join()
    staged = assembly.finish()
    assert [row for row, _ in written] == [0, 1, 2]
    assert slots[0].views(staged.layout)[0][:, 0, 0].tolist() == [0, 1, 2, 3]
