"""The contents of a rank's batches: parts of one order, masks, and random numbers per sample."""

import numpy as np
import pytest

from gpuloader import SampleError, TensorDataset, data, sample_rng
from gpuloader.order.dividing import Division
from gpuloader.order.order import InOrder
from gpuloader.order.plan import OrderedPlan, ShardedPlan
from gpuloader.transforms import RandomCropFlip
from tests.rank_loaders import Stream, loaders, loaders_of, make
from tests.sample_sets import PROCESSES, Made


class TestContents:
    @pytest.mark.parametrize(
        ("count", "rule", "drop_last", "noted"),
        [
            (46, "drop", False, 0),
            (46, "pad", True, 0),
            (46, "pad", False, 0),
            (45, "pad", False, 12),
            (45, "repeat", False, 0),
        ],
    )
    def test_without_masks_sample_counts_are_not_recorded(self, count, rule, drop_last, noted):
        rank = OrderedPlan(InOrder(count), 4, drop_last, Division(0, 2, rule))
        plan = ShardedPlan(rank, 2, "drop")
        assert len(list(plan.batches(0))) == (10 if drop_last else 12)
        assert len(plan.own) == noted

    @pytest.mark.parametrize("cache", ["host", "device"])
    def test_of_a_cache(self, cache):
        for rank in range(2):
            images = [np.full(3, number) for number in range(13)]
            wanted = [images.tolist() for images, _ in make(images, rank, 2, shuffle=True)]
            loader = make(images, rank, 2, shuffle=True, cache=cache)
            assert [images.tolist() for images, _ in loader] == wanted

    def test_of_arrays_of_feeds_and_of_text(self):
        arrays = TensorDataset(np.arange(5.0), np.arange(5))
        *_, batch = make(arrays, 1, 2)
        assert [field.tolist() for field in batch] == [[4.0], [4], [False]]
        feeds = [data("value", [None], "float32"), data("label", [None], "int64")]
        *_, [step] = make(arrays, 0, 2, feed_list=feeds, return_list=False)
        wanted = {"value": [4.0], "label": [4], "mask": [True]}
        assert {name: field.tolist() for name, field in step.items()} == wanted
        named = Made(lambda index: (index, f"{index}.wav"), 5)
        for workers in ({}, PROCESSES):
            *_, (indices, names, mask) = make(named, 1, 2, **workers)
            assert (indices.tolist(), names, mask.tolist()) == ([4], ["4.wav"], [False])

    @pytest.mark.parametrize("kind", [range, Stream])
    def test_of_varying_length(self, kind):
        def lengthen(number):
            return np.arange(int(number))

        class Lengths(Stream):
            def __iter__(self):
                return map(lengthen, range(self.count))

        dataset = Made(lengthen, 5) if kind is range else Lengths(5)
        *_, (rows, mask) = make(dataset, 1, 2, pad={"0": -1})
        assert (rows.tolist(), mask.tolist()) == ([[0, 1, 2, 3]], [False])

    @pytest.mark.parametrize(
        ("count", "uneven", "second"),
        [(7, "drop", [1, 3, 5]), (5, "repeat", [1, 3, 0])],
    )
    def test_single_samples(self, count, uneven, second):
        found = loaders(count, 2, batch_size=None, uneven=uneven, shuffle=False)
        assert [[int(one) for one in samples] for samples in found] == [[0, 2, 4], second]

    def test_what_a_sample_draws_does_not_depend_on_ranks(self):
        dataset = Made(lambda index: (index, sample_rng().random()), 20)
        drawn = []
        for world_size in (1, 3):
            batches = [batch for loader in loaders_of(dataset, world_size) for batch in loader]
            pairs = [pair for indices, noise, *_ in batches for pair in zip(indices, noise, strict=True)]
            drawn.append({int(index): float(number) for index, number in pairs})
        assert drawn[0] == drawn[1]

    @pytest.mark.parametrize("kind", [range, Stream])
    def test_nor_does_what_a_transform_draws(self, kind):
        """Items of an iterable dataset have no index; their position in the epoch replaces it."""
        image = np.arange(64, dtype="uint8").reshape(8, 8, 1)

        def make(number):
            return np.uint8(number) + image, number

        class Images(Stream):
            def __iter__(self):
                return map(make, range(self.count))

        dataset = Made(make, 22) if kind is range else Images(22)
        drawn = []
        for world_size in (1, 3):
            found = {}
            for loader in loaders_of(dataset, world_size, transforms=[RandomCropFlip("0", (4, 4))]):
                for images, labels, *_ in loader:
                    for one, label in zip(images, labels, strict=True):
                        assert found.setdefault(int(label), one.tolist()) == one.tolist()
            assert sorted(found) == list(range(22))
            drawn.append(found)
        assert drawn[0] == drawn[1]
        assert len({str(np.subtract(one, label).tolist()) for label, one in drawn[0].items()}) > 8

    def test_an_error_of_the_data_set_comes_to_all_ranks_of_a_stream_alike(self):
        class Failing(Stream):
            def __iter__(self):
                yield from range(9)
                raise OSError("gone")

        for rank, loader in enumerate(loaders(0, 2, kind=Failing)):
            epoch = iter(loader)
            assert [next(epoch)[0].tolist() for _ in range(2)] == [[rank, rank + 2], [rank + 4, rank + 6]]
            with pytest.raises(SampleError, match="gone"):
                next(epoch)
