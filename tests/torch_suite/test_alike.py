"""The two loaders beside each other: the same arguments, batches, attributes and orders."""

import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections import UserDict

import pytest
import torch
from torch.utils.data import DataLoader as Theirs

from gpuloader.torch import DataLoader, default_convert
from tests.alike import same
from tests.torch_suite.datasets import Made, Numbers

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")


def assert_alike(dataset, *arguments, **options):
    ours = list(DataLoader(dataset, *arguments, **options))
    theirs = list(Theirs(dataset, *arguments, **options))
    assert same(ours, theirs), (ours, theirs)
    assert len(DataLoader(dataset, *arguments, **options)) == len(theirs)


def named(index):
    return {"image": torch.full((2, 3), float(index)), "label": index, "name": f"sample {index}"}


@pytest.mark.parametrize(
    "arguments", [(), (3,), (3, False), (3, None, None, None, 0, None, True, True), (None,)], ids=str
)
def test_options_by_position(arguments):
    assert_alike(Made(named, 7), *arguments)


def test_the_signature_begins_with_pytorchs():
    theirs = inspect.signature(Theirs.__init__).parameters
    ours = inspect.signature(DataLoader.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name


SAME_ATTRIBUTES = (
    "dataset batch_size drop_last num_workers pin_memory pin_memory_device timeout worker_init_fn "
    "generator prefetch_factor persistent_workers in_order multiprocessing_context"
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 3, "shuffle": True, "drop_last": True, "pin_memory": True},
        {"batch_size": None},
        {"batch_sampler": [[0, 1]]},
        {"num_workers": 2, "persistent_workers": True, "timeout": 3, "in_order": False},
        {"num_workers": 2, "prefetch_factor": 5, "multiprocessing_context": "spawn"},
    ],
    ids=str,
)
def test_attributes(options):
    dataset = Numbers(6)
    ours, theirs = DataLoader(dataset, **options), Theirs(dataset, **options)
    for name in SAME_ATTRIBUTES.split():
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.batch_sampler is None) == (theirs.batch_sampler is None)
    if ours.batch_sampler is not None and not options.get("shuffle"):
        assert list(ours.batch_sampler) == list(theirs.batch_sampler)
    assert ours.collate_fn.__name__ == theirs.collate_fn.__name__


def test_the_default_functions():
    samples = [(torch.zeros(2), 1, "a"), (torch.ones(2), 2, "b")]
    assert same(DataLoader(samples).collate_fn(samples), Theirs(samples).collate_fn(samples))
    convert = DataLoader(samples, batch_size=None).collate_fn
    assert convert is default_convert


@pytest.mark.parametrize("collate_fn", [None, list])
def test_a_loader_made_from_anothers_attributes(collate_fn):
    """As trainers do."""
    ours = DataLoader(Made(named), 3, collate_fn=collate_fn)
    assert collate_fn is None or ours.collate_fn is collate_fn
    names = "dataset batch_sampler num_workers collate_fn pin_memory timeout worker_init_fn generator"
    options = {name: getattr(ours, name) for name in f"{names} prefetch_factor persistent_workers".split()}
    for kind in (Theirs, DataLoader):
        assert same(list(kind(**options)), list(ours))


@pytest.mark.parametrize("epochs", [range(3), (5, 6, 7)], ids=["by the loader", "by the program"])
def test_who_calls_set_epoch_of_a_distributed_sampler(lib, epochs):
    """The loader does, unless a program, such as a resumed one, does it itself."""
    sampler, reference = (lib.DistributedSampler(range(8), 2, 0, seed=1) for _ in range(2))
    loader = lib.DataLoader(range(8), 2, sampler=sampler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in epochs:
            reference.set_epoch(epoch)
            if lib.name == "torch" or epochs[0]:
                loader.sampler.set_epoch(epoch)
            assert [int(index) for batch in loader for index in batch] == list(reference)
    told = ["DistributedSampler.set_epoch" in str(one.message) for one in caught]
    assert told == ([True, True] if lib.name == "gpuloader" and not epochs[0] else [])


class Fields(UserDict):
    """A dict of columns whose items by index are rows, as TensorDict is."""

    def __len__(self):
        return len(next(iter(self.data.values())))

    def __bool__(self):
        raise RuntimeError("neither true nor false")

    def __getitem__(self, index):
        return self.data[index] if isinstance(index, str) else self.__getitems__(index)

    def __getitems__(self, indices):
        return Fields({name: column[indices] for name, column in self.data.items()})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dict_that_reads_several_rows_at_once_is_a_dataset(lib, workers):
    fields = Fields({"x": torch.arange(5), "y": torch.arange(10).reshape(5, 2)})
    torch.manual_seed(0)
    loader = lib.DataLoader(fields, 2, shuffle=True, num_workers=workers, collate_fn=only)
    torch.manual_seed(0)
    order = [index.tolist() for index in lib.DataLoader(range(5), 2, shuffle=True)]
    torch.manual_seed(0)
    batches = list(loader)
    assert [type(batch) for batch in batches] == [Fields] * 3
    assert [batch["x"].tolist() for batch in batches] == order
    assert [batch["y"][:, 1].tolist() for batch in batches] == [[2 * x + 1 for x in xs] for xs in order]


def only(batch):
    return batch


def test_a_look_at_a_batch_before_set_epoch(lib):
    """As the tutorial of DistributedDataParallel does, to print the size of batches."""
    sampler, reference = (lib.DistributedSampler(range(8), 2, 0, seed=1) for _ in range(2))
    loader = lib.DataLoader(range(8), 2, sampler=sampler)
    for epoch in range(3):
        assert len(next(iter(loader))) == 2
        loader.sampler.set_epoch(epoch)
        reference.set_epoch(epoch)
        assert [int(index) for batch in loader for index in batch] == list(reference)
    assert type(sampler.epoch) is int


def test_the_epoch_of_a_sampler_is_saved_as_a_number(lib):
    sampler = lib.DistributedSampler(range(8), 2, 0)
    next(iter(lib.DataLoader(range(8), 2, sampler=sampler)))
    saved = pickle.loads(pickle.dumps(sampler.epoch))
    assert (type(saved), saved, str(sampler.epoch)) == (int, 0, "0")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_replaces_default_functions_where_the_loader_looks_for_them(lib, monkeypatch, workers):
    module = importlib.import_module("torch.utils.data._utils.collate")
    monkeypatch.setattr(module, "default_collate", lambda samples: ["replaced", *samples])
    assert list(lib.DataLoader([1, 2], batch_size=None)) == [1, 2]
    monkeypatch.setattr(module, "default_convert", lambda sample: {"replaced": sample})
    loader = lib.DataLoader([1, 2, 3], 2, num_workers=workers)
    single = lib.DataLoader([1, 2], batch_size=None, num_workers=workers)
    monkeypatch.undo()
    assert list(loader) == [["replaced", 1, 2], ["replaced", 3]]
    assert loader.collate_fn([4]) == ["replaced", 4]
    assert list(single) == [{"replaced": 1}, {"replaced": 2}]
    assert single.collate_fn(4) == {"replaced": 4}
    assert list(lib.DataLoader([1, 2], batch_size=None)) == [1, 2]


def test_a_loader_for_each_epoch_reads_the_one_that_its_sampler_was_set_to(lib):
    sampler, reference = (lib.DistributedSampler(range(8), 2, 0, seed=1) for _ in range(2))
    for epoch in (0, 3, 5):
        sampler.set_epoch(epoch)
        reference.set_epoch(epoch)
        for options in ({"sampler": sampler}, {"batch_sampler": lib.BatchSampler(sampler, 1, False)}):
            loader = lib.DataLoader(range(8), **options)
            for _ in range(2 if epoch else 1):
                assert [int(index) for [index] in loader] == list(reference)


def test_a_default_function_that_was_replaced_before_the_import_is_followed():
    code = """
        import torch.utils.data._utils.collate as collate
        import torch.utils.data
        collate.default_collate = torch.utils.data.default_collate = lambda samples: ["replaced", *samples]
        collate.default_convert = torch.utils.data.default_convert = lambda sample: {"replaced": sample}
        from gpuloader.torch import DataLoader
        print(list(DataLoader([1, 2], 2)), list(DataLoader([1], None)))
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[['replaced', 1, 2]] [{'replaced': 1}]\n"
