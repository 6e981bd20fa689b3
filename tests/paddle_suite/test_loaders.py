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
by_workers = pytest.mark.parametrize("workers", [0, 1, 2])


def numbers(loader):
    """Return the first field of each batch as a flat list."""
    fields = [batch[0] if isinstance(batch, list | tuple) else batch for batch in loader]
    return [array(field).ravel().tolist() for field in fields]


def steps_of(loader):
    """Return the steps of an epoch; `list` would ask Paddle's iterator for its length, which it may lack."""
    return [step for step in loader]  # noqa: C416


def flat(loader):
    return list(itertools.chain.from_iterable(numbers(loader)))


def check_batch(images, labels, start, size):
    expected = batch_of(start // size, size)
    assert (array(images) == expected[0]).all()
    assert (array(labels) == expected[1]).all()


def declared(lib):
    return [lib.data("image", [None, WIDTH], "float32"), lib.data("label", [None, 1], "int64")]


class TestWithFeeds:
    """Paddle's static mode."""

    @by_workers
    @pytest.mark.parametrize("kind", [pictures, stream])
    @pytest.mark.parametrize("persistent", [True, False])
    def test_dicts_by_name(self, lib, kind, workers, persistent):
        if kind is stream and workers and persistent and not lib.differs("nothing-hangs"):
            pytest.skip("Paddle hangs in the second epoch")
        with lib.static():
            loader = lib.io.DataLoader(
                kind(lib, COUNT),
                declared(lib),
                lib.cpu,
                return_list=False,
                batch_size=4,
                num_workers=workers,
                persistent_workers=persistent,
                drop_last=True,
            )
            for _ in range(2):
                steps = steps_of(loader)
                assert len(steps) == 5 * (1 if kind is pictures else max(workers, 1))
                for number, [batch] in enumerate(steps):
                    assert sorted(batch) == ["image", "label"]
                    start = number if kind is pictures else number // max(workers, 1)
                    check_batch(batch["image"], batch["label"], start * 4, 4)

    @by_workers
    @pytest.mark.parametrize("kind", [pictures, stream])
    @pytest.mark.parametrize("drop_last", [True, False])
    def test_samples_that_are_batches(self, lib, kind, workers, drop_last):
        dataset = kind(lib, 5, lambda index: batch_of(index, 4))
        with lib.static():
            loader = lib.io.DataLoader(
                dataset,
                declared(lib),
                lib.cpu,
                return_list=False,
                batch_size=None,
                num_workers=workers,
                drop_last=drop_last,
            )
            steps = steps_of(loader)
        assert len(steps) == 5 * (1 if kind is pictures else max(workers, 1))
        for number, [batch] in enumerate(steps):
            index = number if kind is pictures else number // max(workers, 1)
            check_batch(batch["image"], batch["label"], index * 4, 4)

    def test_a_last_step_that_lacks_a_batch_for_a_place(self, lib):
        with lib.static():
            loader = lib.io.DataLoader(
                pictures(lib, 6), declared(lib), lib.fluid.cpu_places(2), return_list=False, batch_size=2
            )
            counts = [len(step) for step in loader]
        assert counts == ([2, 1] if lib.differs("nothing-is-dropped") else [2])


class TestWithoutFeeds:
    """Paddle's dynamic mode."""

    @by_workers
    @pytest.mark.parametrize("persistent", [True, False])
    def test_epochs(self, lib, workers, persistent):
        loader = lib.io.DataLoader(
            pictures(lib, COUNT),
            places=lib.cpu,
            batch_size=8,
            num_workers=workers,
            persistent_workers=persistent,
        )
        assert len(loader) == 3
        for _ in range(3):
            counts = []
            for number, (images, labels) in enumerate(loader):
                counts.append(len(array(labels)))
                check_batch(array(images)[:4], array(labels)[:4], number * 8, 4)
            assert counts == [8, 8, 4]

    def test_return_list_without_feeds_changes_nothing(self, lib):
        loader = lib.io.DataLoader(pictures(lib, 4), places=lib.cpu, return_list=False, batch_size=4)
        [(images, labels)] = list(loader)
        check_batch(images, labels, 0, 4)

    @by_workers
    def test_a_batch_sampler(self, lib, workers):
        for sampler in ([[0, 3], [1]], lib.io.BatchSampler(sampler=[0, 3, 1], batch_size=2)):
            dataset = pictures(lib, 4, np.float32)
            loader = lib.io.DataLoader(dataset, places=lib.cpu, batch_sampler=sampler, num_workers=workers)
            assert loader.batch_sampler is sampler
            assert loader.batch_size is None or loader.batch_size == 2
            assert (len(loader), numbers(loader)) == (2, [[0, 3], [1]])

    @by_workers
    def test_a_collate_fn(self, lib, workers):
        loader = lib.io.DataLoader(
            pictures(lib, 4, np.float32),
            places=lib.cpu,
            batch_size=2,
            collate_fn=lambda samples: [np.stack(samples) * 2],
            num_workers=workers,
        )
        assert numbers(loader) == [[0, 2], [4, 6]]

    @by_workers
    @pytest.mark.parametrize("drop_last", [True, False])
    def test_single_samples(self, lib, workers, drop_last):
        dataset = pictures(lib, 4)
        loader = lib.io.DataLoader(
            dataset, places=lib.cpu, batch_size=None, drop_last=drop_last, num_workers=workers
        )
        assert len(loader) == 4
        for index, (image, label) in enumerate(loader):
            assert array(image).shape == (WIDTH,)
            assert rows(label) == sample(index)[1].tolist()

    @by_workers
    def test_an_epoch_that_has_ended_stays_ended(self, lib, workers):
        epoch = iter(lib.io.DataLoader(pictures(lib, 2), places=lib.cpu, num_workers=workers))
        assert len(list(epoch)) == 2
        ours = lib.differs("ended-is-ended")
        with pytest.raises(StopIteration if ours else (StopIteration, RuntimeError)):
            next(epoch)

    @by_workers
    def test_a_call_begins_an_epoch(self, lib, workers):
        loader = lib.io.DataLoader(
            pictures(lib, 4, np.float32), places=lib.cpu, batch_size=2, num_workers=workers
        )
        assert [numbers([next(loader())]) for _ in range(2)] == [[[0, 1]]] * 2
        assert len(iter(loader)) == len(loader()) == 2


class TestIterable:
    @by_workers
    def test_every_worker_yields_everything(self, lib, workers):
        loader = lib.io.DataLoader(
            stream(lib, 10, np.float32), places=lib.cpu, batch_size=4, num_workers=workers
        )
        whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert numbers(loader) == [batch for batch in whole for _ in range(max(workers, 1))]

    def test_it_has_no_length(self, lib):
        with pytest.raises(ValueError, match="length"):
            len(lib.io.DataLoader(stream(lib, 3), places=lib.cpu))


class TestWorkers:
    def test_what_they_know(self, lib):
        def info(index):
            found = lib.io.get_worker_info()
            return np.array([index, found.id, found.num_workers, len(found.dataset)])

        assert lib.io.get_worker_info() is None
        loader = lib.io.DataLoader(pictures(lib, 4, info), places=lib.cpu, num_workers=2)
        assert numbers(loader) == [[0, 0, 2, 4], [1, 1, 2, 4], [2, 0, 2, 4], [3, 1, 2, 4]]

    def test_their_init(self, lib, tmp_path):
        loader = lib.io.DataLoader(
            pictures(lib, 4),
            places=lib.cpu,
            num_workers=2,
            worker_init_fn=lambda number: (tmp_path / str(number)).touch(),
        )
        assert len(list(loader)) == 4
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"num_workers": -1}, AssertionError),
            ({"timeout": -1}, AssertionError),
            ({"prefetch_factor": 0}, AssertionError),
            ({"batch_size": 0}, AssertionError),
            ({"batch_sampler": [[0]], "batch_size": 2}, AssertionError),
            ({"batch_sampler": [[0]], "shuffle": True}, AssertionError),
            ({"batch_sampler": [[0]], "drop_last": True}, AssertionError),
            ({"shuffle": 1}, AssertionError),
            ({"drop_last": 1}, AssertionError),
            ({"places": "nowhere"}, ValueError),
            ({"places": [3]}, ValueError),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
    )
    def test_options(self, lib, options, error):
        with pytest.raises(error):
            lib.io.DataLoader(pictures(lib, 3), **{"places": lib.cpu, **options})

    @pytest.mark.parametrize("options", [{"shuffle": True}, {"batch_sampler": [[0]]}], ids=" ".join)
    def test_options_of_an_iterable_dataset(self, lib, options):
        with pytest.raises(ValueError, match=r"Iterable|iterable"):
            lib.io.DataLoader(stream(lib, 3), places=lib.cpu, **options)

    @by_workers
    @pytest.mark.parametrize("kind", [pictures, stream])
    def test_a_dataset_that_raises(self, lib, only_ours, kind, workers):
        def broken(index):
            raise KeyError(f"sample {index} is broken")

        assert lib.differs("errors-reach-the-consumer")
        loader = lib.io.DataLoader(kind(lib, 3, broken), places=lib.cpu, num_workers=workers)
        with pytest.raises(RuntimeError, match="sample 0 is broken") as caught:
            next(loader())
        assert isinstance(caught.value.__cause__, KeyError)


class TestAttributes:
    def test_of_a_loader(self, lib):
        dataset = pictures(lib, 10)
        options = {"num_workers": 1, "timeout": 30, "use_shared_memory": True}
        loader = lib.io.DataLoader(
            dataset, places=lib.cpu, batch_size=4, shuffle=True, drop_last=True, **options
        )
        assert loader.dataset is dataset
        assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.timeout) == (4, True, 1, 30)
        assert (loader.return_list, loader.feed_list, loader.use_buffer_reader) == (True, None, True)
        assert (loader.prefetch_factor, loader.worker_init_fn) == (2, None)
        assert (loader.use_shared_memory, loader.auto_collate_batch, len(loader.places)) == (True, True, 1)
        sampler = loader.batch_sampler
        assert (sampler.batch_size, sampler.drop_last, len(sampler)) == (4, True, 2)

    @pytest.mark.parametrize("kind", ["reader", "dataset"])
    def test_of_the_library(self, lib, kind):
        """Whatever a program looks up on a loader of Paddle 3, ours has too."""
        if kind == "reader":
            with lib.dynamic():
                loader = lib.fluid.io.DataLoader.from_generator(capacity=2)
        else:
            loader = lib.io.DataLoader(pictures(lib, 3), places=lib.cpu)
        wanted = {
            "reader": "iterable set_batch_generator set_sample_generator set_sample_list_generator",
            "dataset": "auto_collate_batch batch_sampler batch_size collate_fn dataset drop_last feed_list "
            "num_workers pin_memory places prefetch_factor return_list timeout "
            "use_buffer_reader use_shared_memory worker_init_fn",
        }
        assert [name for name in wanted[kind].split() if not hasattr(loader, name)] == []
