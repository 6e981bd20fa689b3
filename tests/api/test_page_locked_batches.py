"""`prefetch`: arrays that are page-locked already are copied from where they lie."""

import gc
import weakref

import numpy as np
import pytest

import gpuloader
from gpuloader import Ragged, SampleError
from gpuloader.testing import CustomPlace, SimulatedDevice, simulated_places
from gpuloader.transforms import Normalize, OneHot, Pad, RandomCropFlip
from tests.api.test_prefetching import IMAGES, note_copies, wholly


class Locked(SimulatedDevice):
    """A device that takes some arrays for page-locked ones."""

    def __init__(self, *arrays, **options):
        super().__init__(**options)
        self.spans = [(one.ctypes.data, one.nbytes) for one in arrays]
        self.asked = []

    def is_page_locked(self, address, nbytes):
        self.asked.append(nbytes)
        return any(start <= address and address + nbytes <= start + size for start, size in self.spans)


class TestPageLockedArrays:
    big = staticmethod(lambda number: np.full((100, 200), number, np.int64))

    @pytest.mark.parametrize("first", [0, 1])
    def test_they_are_copied_from_where_they_lie(self, monkeypatch, first):
        """Also after batches that look like them, but do not lie in such memory."""
        arrays = [self.big(n) for n in range(5)]
        device = Locked(*arrays[first:])
        copies = note_copies(device, monkeypatch)
        batches = [{"a": np.arange(n + 3), "x": one, "b": np.ones(2)} for n, one in enumerate(arrays)]
        loader = gpuloader.prefetch(batches, places=CustomPlace(device))
        for number, batch in enumerate(loader):
            assert wholly(batch) == wholly(batches[number])
        assert copies[first::2] == [(one.ctypes.data, one.nbytes) for one in arrays[first:]]
        if not first:
            [buffers] = loader._epochs._idle
            assert buffers.ring.slot_nbytes < 2000  # the slots have no room for them
            small = loader.stats().nbytes - sum(one.nbytes for one in arrays)
            assert 0 < small <= len(arrays) * buffers.ring.slot_nbytes

    def test_they_keep_the_order_of_their_dimensions(self):
        loader = gpuloader.prefetch([IMAGES] * 2, places=CustomPlace(Locked(IMAGES)))
        for found in loader:
            np.testing.assert_array_equal(np.asarray(found), IMAGES)
        assert loader._epochs._idle[0].ring.slot_nbytes == 256

    @pytest.mark.parametrize("locked", [False, True])
    def test_only_what_is_page_locked_is_asked_about_again(self, locked):
        """Loaders use memory again; what is page-locked by then may go through a slot all the same."""
        arrays = [self.big(n) for n in range(3)]
        device = Locked(*arrays[: 3 * locked])
        batches = ({"x": arrays[number % 3], "n": number} for number in range(30))
        for number, batch in enumerate(gpuloader.prefetch(batches, places=CustomPlace(device))):
            assert np.asarray(batch["x"])[0, 0] == number % 3
            if number == 20:
                device.spans = [] if locked else [(one.ctypes.data, one.nbytes) for one in arrays]
        assert 20 < len(device.asked) < 30 if locked else len(device.asked) == 3

    def test_small_and_strided_ones_go_through_the_slot(self, monkeypatch):
        small = np.arange(100)
        device = Locked(small)
        copies = note_copies(device, monkeypatch)
        assert len(list(gpuloader.prefetch([{"x": small}] * 3, places=CustomPlace(device)))) == 3
        assert (len(copies), device.asked) == (3, [])
        array = np.arange(40_000).reshape(200, 200)
        batch = [array.T, array[:, ::2], array[3:]]
        [found] = gpuloader.prefetch([batch], places=CustomPlace(Locked(array)))
        assert wholly(found) == wholly(batch)

    def test_where_some_batches_stay_on_the_host_none_is_asked_about(self):
        arrays = [self.big(n) for n in range(4)]
        device = Locked(*arrays)
        for step in gpuloader.prefetch(arrays, places=["cpu", CustomPlace(device)]):
            assert [np.asarray(one).shape for one in step] == [(100, 200)] * 2
        assert device.asked == []

    def test_they_are_kept_until_their_copy_has_run_and_no_longer(self):
        gone = []

        class Device(Locked):
            def is_page_locked(self, address, nbytes):
                return True

        device = Device()

        def batches():
            for number in range(4):
                array = self.big(number)
                weakref.finalize(array, gone.append, number)
                yield {"x": array.view()}
                del array

        epoch = iter(gpuloader.prefetch(batches(), places=CustomPlace(device), prefetch=0))
        seen = []
        for number, batch in enumerate(epoch):
            gc.collect()
            assert number not in gone  # its copy may not have run
            seen.append(batch["x"].launch_read())
            del batch
            device.finish(device.consumer_stream())
        gc.collect()
        assert gone == [0, 1, 2, 3]
        assert [one[0][0, 0] for one in seen] == [0, 1, 2, 3]

    def test_with_transforms(self):
        images = [np.random.default_rng(n).integers(0, 256, (9, 40, 40, 3), np.uint8) for n in range(4)]
        batches = [{"label": np.arange(9) % 4, "x": one} for one in images]
        steps = [RandomCropFlip("x", (32, 32)), Normalize("x", scale=1 / 255), OneHot("label", 4)]
        options = {"transforms": steps, "seed": 5}
        found = [
            [wholly(batch) for batch in gpuloader.prefetch(batches, places=place, **options)]
            for place in (CustomPlace(Locked(*images)), simulated_places(1)[0], "cpu")
        ]
        assert found[0] == found[1] == found[2]
        assert found[0][0]["x"][1] == "float32"
        big = self.big(0)
        batches = [{"x": big, "words": Ragged.from_samples([[1], [1] * n], "int64")} for n in (2, 3)]
        loader = gpuloader.prefetch(batches, places=CustomPlace(Locked(big)), transforms=[Pad("words", 2)])
        epoch = iter(loader)
        assert wholly(next(epoch))["words"][2] == [[1, 0], [1, 1]]
        with pytest.raises(SampleError, match=r"batch 1.*expected at most 2 steps, got 3"):
            next(epoch)
