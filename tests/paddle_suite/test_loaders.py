"""Loaders over datasets: paddle.io.DataLoader.

The cases of Paddle's test_multiprocess_dataloader_{static,dynamic,exception}.py, of their iterable versions,
and of test_dataloader_*.py. Where those train a network, the cases here look at the batches.
"""

import itertools

import numpy as np
import pytest

from tests.paddle_suite.datasets import WIDTH, batch_of, pictures, sample, stream
from tests.paddle_suite.libraries import array, rows

COUNT = 20
by_workers = pytest.mark.parametrize("workers", [0, 2])


def load(lib, dataset, **options):
    return lib.io.DataLoader(dataset, **{"places": lib.cpu, **options})


def load_with_feeds(lib, dataset, **options):
    """Return a loader as in Paddle's static mode, whose batches are dicts."""
    feeds = [lib.data("image", [None, WIDTH], "float32"), lib.data("label", [None, 1], "int64")]
    return load(lib, dataset, feed_list=feeds, return_list=False, **options)


def numbers(loader):
    """Return the first field of each batch as a flat list."""
    fields = [batch[0] if isinstance(batch, list | tuple) else batch for batch in loader]
    return [array(field).ravel().tolist() for field in fields]


def steps_of(loader):
    """Return the steps of an epoch; `list` would ask Paddle's iterator for its length, which it may lack."""
    return [step for step in loader]  # noqa: C416


def check_batch(images, labels, start, size):
    expected = batch_of(start // size, size)
    assert (array(images) == expected[0]).all()
    assert (array(labels) == expected[1]).all()


class TestWithFeeds:
    """Paddle's static mode."""

    @by_workers
    @pytest.mark.parametrize("kind", [pictures, stream])
    @pytest.mark.parametrize("persistent", [True, False])
    def test_dicts_by_name(self, lib, kind, workers, persistent):
        if kind is stream and workers and persistent and not lib.differs("nothing-hangs"):
            pytest.skip("Paddle hangs in the second epoch")
        options = {"num_workers": workers, "persistent_workers": persistent}
        with lib.static():
            loader = load_with_feeds(lib, kind(lib, COUNT), batch_size=4, drop_last=True, **options)
            for _ in range(2):
                self.check(steps_of(loader), kind, workers)

    @by_workers
    @pytest.mark.parametrize("kind", [pictures, stream])
    @pytest.mark.parametrize("drop_last", [True, False])
    def test_samples_that_are_batches(self, lib, kind, workers, drop_last):
        dataset = kind(lib, 5, lambda index: batch_of(index, 4))
        options = {"batch_size": None, "num_workers": workers, "drop_last": drop_last}
        with lib.static():
            self.check(steps_of(load_with_feeds(lib, dataset, **options)), kind, workers)

    def check(self, steps, kind, workers):
        """Check that there are five batches of four; every worker of a stream yields all of them."""
        times = 1 if kind is pictures else max(workers, 1)
        assert len(steps) == 5 * times
        for number, [batch] in enumerate(steps):
            assert sorted(batch) == ["image", "label"]
            check_batch(batch["image"], batch["label"], number // times * 4, 4)

    def test_a_last_step_that_lacks_a_batch_for_a_place(self, lib):
        with lib.static():
            loader = load_with_feeds(lib, pictures(lib, 6), places=lib.fluid.cpu_places(2), batch_size=2)
            counts = [len(step) for step in loader]
        assert counts == ([2, 1] if lib.differs("nothing-is-dropped") else [2])


class TestWithoutFeeds:
    """Paddle's dynamic mode."""

    @by_workers
    @pytest.mark.parametrize("persistent", [True, False])
    def test_epochs(self, lib, workers, persistent):
        options = {"batch_size": 8, "num_workers": workers, "persistent_workers": persistent}
        loader = load(lib, pictures(lib, COUNT), **options)
        assert len(loader) == 3
        for _ in range(3):
            counts = []
            for number, (images, labels) in enumerate(loader):
                counts.append(len(array(labels)))
                check_batch(array(images)[:4], array(labels)[:4], number * 8, 4)
            assert counts == [8, 8, 4]

    def test_return_list_without_feeds_changes_nothing(self, lib):
        [(images, labels)] = list(load(lib, pictures(lib, 4), return_list=False, batch_size=4))
        check_batch(images, labels, 0, 4)

    @by_workers
    def test_a_batch_sampler(self, lib, workers):
        for sampler in ([[0, 3], [1]], lib.io.BatchSampler(sampler=[0, 3, 1], batch_size=2)):
            loader = load(lib, pictures(lib, 4, np.float32), batch_sampler=sampler, num_workers=workers)
            assert loader.batch_sampler is sampler
            assert loader.batch_size is None or loader.batch_size == 2
            assert (len(loader), numbers(loader)) == (2, [[0, 3], [1]])

    @by_workers
    @pytest.mark.parametrize("drop_last", [True, False])
    def test_single_samples(self, lib, workers, drop_last):
        options = {"batch_size": None, "drop_last": drop_last, "num_workers": workers}
        loader = load(lib, pictures(lib, 4), **options)
        assert len(loader) == 4
        for index, (image, label) in enumerate(loader):
            assert array(image).shape == (WIDTH,)
            assert rows(label) == sample(index)[1].tolist()

    @by_workers
    def test_an_epoch_that_has_ended_stays_ended(self, lib, workers):
        epoch = iter(load(lib, pictures(lib, 2), num_workers=workers))
        assert len(list(epoch)) == 2
        ours = lib.differs("ended-is-ended")
        with pytest.raises(StopIteration if ours else (StopIteration, RuntimeError)):
            next(epoch)

    @by_workers
    def test_a_call_begins_an_epoch(self, lib, workers):
        loader = load(lib, pictures(lib, 4, np.float32), batch_size=2, num_workers=workers)
        assert [numbers([next(loader())]) for _ in range(2)] == [[[0, 1]]] * 2
        assert len(iter(loader)) == len(loader()) == 2


@by_workers
def test_every_worker_yields_all_of_a_stream(lib, workers):
    loader = load(lib, stream(lib, 10, np.float32), batch_size=4, num_workers=workers)
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert numbers(loader) == [batch for batch in whole for _ in range(max(workers, 1))]
    with pytest.raises(ValueError, match="length"):
        len(loader)


class TestWorkers:
    def test_what_they_know(self, lib):
        def info(index):
            found = lib.io.get_worker_info()
            return np.array([index, found.id, found.num_workers, len(found.dataset)])

        assert lib.io.get_worker_info() is None
        loader = load(lib, pictures(lib, 4, info), num_workers=2)
        assert numbers(loader) == [[0, 0, 2, 4], [1, 1, 2, 4], [2, 0, 2, 4], [3, 1, 2, 4]]


REFUSED = [
    {"num_workers": -1}, {"timeout": -1}, {"prefetch_factor": 0}, {"batch_size": 0}, {"shuffle": 1},
    {"drop_last": 1}, {"places": "nowhere"}, {"places": [3]}, {"batch_sampler": [[0]], "batch_size": 2},
    {"batch_sampler": [[0]], "shuffle": True}, {"batch_sampler": [[0]], "drop_last": True},
]  # fmt: skip


class TestMistakes:
    @pytest.mark.parametrize("options", REFUSED, ids=" ".join)
    def test_options(self, lib, options):
        with pytest.raises(ValueError if "places" in options else AssertionError):
            load(lib, pictures(lib, 3), **options)

    @pytest.mark.parametrize("options", [{"shuffle": True}, {"batch_sampler": [[0]]}], ids=" ".join)
    def test_options_of_an_iterable_dataset(self, lib, options):
        with pytest.raises(ValueError, match=r"Iterable|iterable"):
            load(lib, stream(lib, 3), **options)

    @by_workers
    @pytest.mark.parametrize("kind", [pictures, stream])
    def test_a_dataset_that_raises(self, lib, only_ours, kind, workers):
        def broken(index):
            raise KeyError(f"sample {index} is broken")

        assert lib.differs("errors-reach-the-consumer")
        with pytest.raises(RuntimeError, match="sample 0 is broken") as caught:
            next(load(lib, kind(lib, 3, broken), num_workers=workers)())
        assert isinstance(caught.value.__cause__, KeyError)


ATTRIBUTES = {
    "batch_size": 4, "drop_last": True, "num_workers": 1, "timeout": 30, "use_shared_memory": True,
    "return_list": True, "feed_list": None, "use_buffer_reader": True, "prefetch_factor": 2,
    "worker_init_fn": None, "auto_collate_batch": True,
}  # fmt: skip


def test_attributes(lib):
    """Whatever a program looks up on a loader of Paddle 3, ours has too."""
    dataset = pictures(lib, 10)
    passed = {name: ATTRIBUTES[name] for name in itertools.islice(ATTRIBUTES, 5)}
    loader = load(lib, dataset, shuffle=True, **passed)
    assert {name: getattr(loader, name) for name in ATTRIBUTES} == ATTRIBUTES
    assert (loader.dataset, len(loader.places)) == (dataset, 1)
    sampler = loader.batch_sampler
    assert (sampler.batch_size, sampler.drop_last, len(sampler)) == (4, True, 2)
    with lib.dynamic():
        reading = lib.fluid.io.DataLoader.from_generator(capacity=2)
    setters = ("iterable", "set_batch_generator", "set_sample_generator", "set_sample_list_generator")
    assert [name for name in setters if not hasattr(reading, name)] == []
    assert hasattr(loader, "collate_fn")
    assert hasattr(loader, "pin_memory")
