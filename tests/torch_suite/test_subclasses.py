"""Classes derived from the loader as public programs do it, and attributes that are set afterwards."""

import copy

import numpy as np
import pytest
import torch
import torch.utils.data

from tests.sample_sets import values
from tests.torch_suite.datasets import Made
from tests.torch_suite.libraries import assert_same_on_both

SQUARES = Made(lambda index: torch.tensor(index**2), 7)


class Endless:
    """Repeats a sampler forever, so that one iterator, and its workers, serve all epochs."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)

    def __len__(self):
        return len(self.sampler)


def splitting(lib):
    """Return a loader that keeps a part for validation, whose samplers are attributes before it is made."""

    class Splitting(lib.DataLoader):
        def __init__(self, dataset, batch_size, held_back, num_workers=0):
            self.shuffle = True
            order = np.random.default_rng(0).permutation(len(dataset)).tolist()
            self.sampler, self.held_back = (
                torch.utils.data.SubsetRandomSampler(part) for part in (order[held_back:], order[:held_back])
            )
            self.batch_size = batch_size
            self.arguments = {"dataset": dataset, "batch_size": self.batch_size, "num_workers": num_workers}
            super().__init__(sampler=self.sampler, **self.arguments)

        def rest(self):
            return lib.DataLoader(sampler=self.held_back, **self.arguments)

    return Splitting


def repeating(lib, by_force):
    """Return a loader that replaces its batch sampler by one without end; `by_force` past `__setattr__`."""

    class Repeating(lib.DataLoader):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            if by_force:
                object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
            else:
                self._DataLoader__initialized = False
                name = "sampler" if self.batch_sampler is None else "batch_sampler"
                setattr(self, name, Endless(getattr(self, name)))
                self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self):
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler.sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

        def reset(self):
            self.iterator = self._get_iterator()

    return Repeating


def epochs(loader, count=2):
    return [values(loader) for _ in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
class TestSubclasses:
    def test_samplers_may_be_attributes_before_the_loader_is_made(self, workers):
        def program(lib):
            loader = splitting(lib)(SQUARES, 2, 3, num_workers=workers)
            assert loader.sampler is loader.batch_sampler.sampler
            return epochs(loader), epochs(loader.rest()), len(loader), loader.batch_size, loader.shuffle

        assert_same_on_both(program)

    @pytest.mark.parametrize(
        ("size", "by_force", "shuffle"),
        [(3, False, True), (3, True, False), (3, True, True), (None, False, True)],
    )
    def test_the_batch_sampler_or_that_of_single_samples_may_be_replaced(
        self, workers, shuffle, size, by_force
    ):
        def program(lib):
            loader = repeating(lib, by_force)(SQUARES, size, shuffle, num_workers=workers)
            kept = len(loader), loader.batch_size, loader.drop_last, type(loader.sampler), epochs(loader, 3)
            # Each library has read another number of batches ahead, for which the sampler has drawn.
            torch.manual_seed(1)
            loader.reset()
            return *kept, epochs(loader)

        assert_same_on_both(program)

    def test_an_iterator_may_be_made_first_when_it_is_needed(self, workers):
        """As Ultralytics does, which replaces the batch sampler before."""

        def program(lib):
            loader = lib.DataLoader(SQUARES, 3, True, num_workers=workers)
            object.__setattr__(loader, "batch_sampler", Endless(loader.batch_sampler))
            iterator = loader._get_iterator()
            return [next(iterator).tolist() for _ in range(9)]

        assert_same_on_both(program)

    def test_a_loader_may_wrap_another_one_and_keep_its_iterator(self, workers):
        """As Catalyst does, without making itself a loader."""

        def program(lib):
            class Wrapper(lib.DataLoader):
                def __init__(self, loader):
                    self.loader = loader
                    self._iterator = iter(loader)

                def __iter__(self):
                    return self._iterator

            return values(Wrapper(lib.DataLoader(SQUARES, 3, True, num_workers=workers)))

        assert_same_on_both(program)

    def test_another_loader_is_made_from_the_public_attributes(self, workers):
        """As Ignite does."""

        def program(lib):
            loader = lib.DataLoader(SQUARES, 3, True, num_workers=workers)
            named = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
            for name in ("batch_size", "sampler", "drop_last", "batch_sampler"):
                del named[name]
            return epochs(type(loader)(batch_sampler=list(loader.batch_sampler), **named))

        assert_same_on_both(program)

    def test_pytorchs_own_iterators_read_the_loader(self, workers):
        iterators = torch.utils.data.dataloader
        kind = iterators._MultiProcessingDataLoaderIter if workers else iterators._SingleProcessDataLoaderIter

        def program(lib):
            own = type("Own", (lib.DataLoader,), {"__iter__": lambda loader: kind(loader)})
            loader = own(SQUARES, 3, True, num_workers=workers)
            return epochs(loader), torch.rand(1).item()

        assert_same_on_both(program)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_replaced_batch_sampler_draws_what_the_order_needs_and_no_more(shuffle):
    def program(lib):
        loader = repeating(lib, True)(Made(lambda _: torch.rand(1), 7), 3, shuffle)
        return epochs(loader), torch.rand(1).item()

    assert_same_on_both(program)


def test_the_class_is_pytorchs(lib):
    loader = lib.DataLoader(SQUARES, 2, num_workers=1, drop_last=True, timeout=3)
    assert issubclass(lib.DataLoader, torch.utils.data.DataLoader)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert loader._auto_collation
    assert loader._index_sampler is loader.batch_sampler
    for name in (
        "dataset", "batch_size", "sampler", "batch_sampler", "num_workers", "drop_last",
        "timeout", "generator", "prefetch_factor", "persistent_workers", "worker_init_fn", "in_order",
        "pin_memory",
    ):  # fmt: skip
        # Frameworks look for them there.
        assert vars(loader)[name] is getattr(loader, name), name
    assert type(loader.timeout) is int


_shift = 0


def set_shift(worker):
    global _shift
    _shift = 10


def tell_worker(index):
    """Return which worker reads, as its number and what `worker_init_fn` adds."""
    info = torch.utils.data.get_worker_info()
    return torch.tensor(-1 if info is None else info.id + _shift)


class TestSettingAttributes:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_collate_fn_counts_from_the_next_epoch(self, lib, workers):
        loader = lib.DataLoader(SQUARES, 3, num_workers=workers)
        first = iter(loader)
        next(first)
        loader.collate_fn = sum
        assert loader.collate_fn is sum
        assert values(first) == [[9, 16, 25], [36]]
        assert epochs(loader) == [[5, 50, 36]] * 2

    def test_num_workers_and_their_options(self, lib):
        loader = lib.DataLoader(Made(tell_worker, 2), 1)
        assert values(loader) == [[-1], [-1]]
        changes = {"num_workers": 1, "prefetch_factor": 2, "worker_init_fn": set_shift, "timeout": 60}
        for name, value in (changes | {"multiprocessing_context": "fork"}).items():
            setattr(loader, name, value)
        assert loader.multiprocessing_context.get_start_method() == "fork"
        assert (loader.num_workers, loader.timeout) == (1, 60)
        assert values(loader) == [[10], [10]]
        loader.num_workers = loader.timeout = 0
        assert values(loader) == [[-1], [-1]]

    def test_workers_without_an_iterator_start_anew_with_the_dataset_as_it_is_now(self):
        def program(lib):
            loader = lib.DataLoader(Made(torch.tensor, 4), 2, True, num_workers=1, persistent_workers=True)
            found = epochs(loader)
            loader.dataset.make = lambda index: torch.tensor(-index)
            found += epochs(loader)
            loader._DataLoader__initialized, loader._iterator = False, None
            found += epochs(loader)
            loader._DataLoader__initialized = True
            return found + epochs(loader), torch.rand(1).item()

        assert_same_on_both(program)

    def test_what_has_no_effect_here(self, lib):
        loader = lib.DataLoader(SQUARES, 4)
        changes = {"pin_memory": False, "pin_memory_device": "", "in_order": True, "mine": 3}
        for name, value in changes.items():
            setattr(loader, name, value)
            assert getattr(loader, name) == value
        assert values(loader) == [[0, 1, 4, 9], [16, 25, 36]]

    def test_the_order_stays(self):
        def program(lib):
            loader = lib.DataLoader(SQUARES, 3, True)
            sampler, batch_sampler = loader.sampler, loader.batch_sampler
            before = values(loader)
            loader.collate_fn = torch.stack
            loader.generator = torch.Generator().manual_seed(3)
            assert loader.sampler is sampler
            assert loader.batch_sampler is batch_sampler
            assert len(list(batch_sampler)) == 3
            return before, epochs(loader), torch.rand(1).item()

        assert_same_on_both(program)

    def test_a_copy_has_what_was_set(self, lib):
        loader = lib.DataLoader(SQUARES, 4)
        loader.collate_fn = sum
        loader.name = "mine"
        again = copy.copy(loader)
        assert values(again) == [14, 77]
        assert again.name == "mine"
        with pytest.raises(ValueError, match="batch_size"):
            again.batch_size = 3
