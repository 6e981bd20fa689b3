"""Classes derived from the loader as public programs do it, and attributes that are set afterwards."""

import copy

import numpy as np
import pytest
import torch
import torch.utils.data

from tests.torch_suite.libraries import LIBRARIES


class Squares(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return torch.tensor(index**2)

    def __len__(self):
        return 7


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
            self.sampler, self.held_back = self._split(len(dataset), held_back)
            self.batch_size = batch_size
            self.arguments = {"dataset": dataset, "batch_size": self.batch_size, "num_workers": num_workers}
            super().__init__(sampler=self.sampler, **self.arguments)

        def _split(self, count, held_back):
            order = np.random.default_rng(0).permutation(count).tolist()
            parts = order[held_back:], order[:held_back]
            return [torch.utils.data.SubsetRandomSampler(part) for part in parts]

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
                if self.batch_sampler is None:
                    self.sampler = Endless(self.sampler)
                else:
                    self.batch_sampler = Endless(self.batch_sampler)
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


def listed(loader, epochs=2):
    return [[batch.tolist() for batch in loader] for _ in range(epochs)]


def on_both(program):
    """Return what a program, seeded alike, gives on each library."""
    found = []
    for one in LIBRARIES:
        torch.manual_seed(0)
        found.append(program(*one.values))
    return found


@pytest.mark.parametrize("workers", [0, 2])
class TestSubclasses:
    def test_samplers_may_be_attributes_before_the_loader_is_made(self, workers):
        def program(lib):
            loader = splitting(lib)(Squares(), 2, 3, num_workers=workers)
            assert loader.sampler is loader.batch_sampler.sampler
            return listed(loader), listed(loader.rest()), len(loader), loader.batch_size, loader.shuffle

        ours, theirs = on_both(program)
        assert ours == theirs

    @pytest.mark.parametrize("by_force", [False, True])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_the_batch_sampler_may_be_replaced(self, workers, by_force, shuffle):
        def program(lib):
            loader = repeating(lib, by_force)(Squares(), 3, shuffle, num_workers=workers)
            kept = len(loader), loader.batch_size, loader.drop_last, type(loader.sampler), listed(loader, 3)
            # Each library has read another number of batches ahead, for which the sampler has drawn.
            torch.manual_seed(1)
            loader.reset()
            return *kept, listed(loader)

        ours, theirs = on_both(program)
        assert ours == theirs

    def test_so_may_the_sampler_of_single_samples(self, workers):
        def program(lib):
            return listed(repeating(lib, False)(Squares(), None, num_workers=workers))

        ours, theirs = on_both(program)
        assert ours == theirs


class TestTheClass:
    def test_is_pytorchs(self, lib):
        assert issubclass(lib.DataLoader, torch.utils.data.DataLoader)
        loader = lib.DataLoader(Squares())
        assert isinstance(loader, torch.utils.data.DataLoader)
        assert loader._auto_collation
        assert loader._index_sampler is loader.batch_sampler

    def test_attributes_are_where_frameworks_look_for_them(self, lib):
        loader = lib.DataLoader(Squares(), 2, num_workers=1, drop_last=True, timeout=3)
        found = vars(loader)
        for name in (
            "dataset", "batch_size", "sampler", "batch_sampler", "num_workers", "drop_last",
            "timeout", "generator", "prefetch_factor", "persistent_workers", "worker_init_fn", "in_order",
            "pin_memory",
        ):  # fmt: skip
            assert found[name] is getattr(loader, name), name

    def test_a_loader_made_of_them_is_alike(self, lib):
        names = ("dataset", "batch_sampler", "num_workers", "collate_fn", "timeout", "worker_init_fn")
        loader = lib.DataLoader(Squares(), 2, collate_fn=torch.stack)
        again = type(loader)(**{name: getattr(loader, name) for name in names})
        assert listed(again, 1) == listed(loader, 1)


class TestSettingAttributes:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_collate_fn_counts_from_the_next_epoch(self, lib, workers):
        loader = lib.DataLoader(Squares(), 3, num_workers=workers)
        first = iter(loader)
        next(first)
        loader.collate_fn = sum
        assert loader.collate_fn is sum
        assert [batch.tolist() for batch in first] == [[9, 16, 25], [36]]
        assert listed(loader, 2) == [[5, 50, 36]] * 2

    def test_num_workers_and_their_options(self, lib):
        loader = lib.DataLoader(Asks(), 1)
        assert listed(loader, 1) == [[[-1], [-1]]]
        loader.num_workers = 1
        loader.prefetch_factor = 2
        loader.worker_init_fn = set_shift
        loader.multiprocessing_context = "fork"
        loader.timeout = 60
        assert loader.multiprocessing_context.get_start_method() == "fork"
        assert (loader.num_workers, loader.timeout) == (1, 60)
        assert listed(loader, 1) == [[[10], [10]]]
        loader.num_workers = loader.timeout = 0
        assert listed(loader, 1) == [[[-1], [-1]]]

    def test_what_has_no_effect_here(self, lib):
        loader = lib.DataLoader(Squares(), 4)
        for name, value in (
            ("pin_memory", False),
            ("pin_memory_device", ""),
            ("in_order", True),
            ("mine", 3),
        ):
            setattr(loader, name, value)
            assert getattr(loader, name) == value
        assert listed(loader, 1) == [[[0, 1, 4, 9], [16, 25, 36]]]

    def test_the_order_stays(self):
        def program(lib):
            loader = lib.DataLoader(Squares(), 3, True)
            sampler, batch_sampler = loader.sampler, loader.batch_sampler
            before = listed(loader, 1)
            loader.collate_fn = torch.stack
            loader.generator = torch.Generator().manual_seed(3)
            assert loader.sampler is sampler
            assert loader.batch_sampler is batch_sampler
            assert len(list(batch_sampler)) == 3
            return before, listed(loader), torch.rand(1).item()

        ours, theirs = on_both(program)
        assert ours == theirs

    def test_a_copy_has_what_was_set(self, lib):
        loader = lib.DataLoader(Squares(), 4)
        loader.collate_fn = sum
        loader.name = "mine"
        again = copy.copy(loader)
        assert listed(again, 1) == [[14, 77]]
        assert again.name == "mine"
        with pytest.raises(ValueError, match="batch_size"):
            again.batch_size = 3


_shift = 0


def set_shift(worker):
    global _shift
    _shift = 10


class Asks(torch.utils.data.Dataset):
    """Says which worker reads, as its number and what `worker_init_fn` adds."""

    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return torch.tensor(-1 if info is None else info.id + _shift)

    def __len__(self):
        return 2
