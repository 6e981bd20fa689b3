"""Arguments that exclude each other, and what may be assigned."""

import warnings

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from tests.torch_suite.datasets import Numbers, Stream, pictures

SAMPLER = SequentialSampler(range(100))
BATCHES = BatchSampler(SAMPLER, 3, False)
REFUSED = {
    "negative workers": {"num_workers": -1},
    "negative timeout": {"timeout": -1},
    "drop_last without batches": {"batch_size": None, "drop_last": True},
    "an unknown start method": {"num_workers": 1, "multiprocessing_context": "bad"},
    "sampler and shuffle": {"batch_size": 11, "sampler": SAMPLER, "shuffle": True},
    "both samplers and shuffle": {"batch_sampler": BATCHES, "sampler": SAMPLER, "shuffle": True},
    "batch sampler and size": {"batch_size": 11, "batch_sampler": BATCHES},
    "batch sampler and shuffle": {"shuffle": True, "batch_sampler": BATCHES},
    "batch sampler and drop_last": {"drop_last": True, "batch_sampler": BATCHES},
    "persistence without workers": {"persistent_workers": True},
    "drop_last is no bool": {"drop_last": 3},
    "prefetch of less than nothing": {"num_workers": 1, "prefetch_factor": -1},
    "batches of nothing": {"batch_size": 0},
    "half a sample": {"batch_size": 2.5},
    "a start method of another type": {"num_workers": 1, "multiprocessing_context": object()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions(lib, name):
    is_of_type = name.endswith("type") or (name.endswith("bool") and lib.name == "gpuloader")
    with pytest.raises(TypeError if is_of_type else ValueError):
        lib.DataLoader(pictures(lib), **REFUSED[name])


@pytest.mark.parametrize(
    "options", [{"multiprocessing_context": "fork"}, {"timeout": 5}, {"prefetch_factor": 3}], ids=str
)
def test_options_of_workers_without_workers(lib, options):
    if lib.differs("options-without-workers"):
        assert len(list(lib.DataLoader(Numbers(2), **options))) == 2
    else:
        with pytest.raises((ValueError, AssertionError)):
            list(lib.DataLoader(Numbers(2), **options))


def test_an_iterable_dataset_has_no_sampler(lib):
    samplers = [{"sampler": SAMPLER}, {"sampler": 3}, {"batch_sampler": BATCHES}, {"batch_sampler": 3}]
    for options in ({"shuffle": True}, *samplers):
        with pytest.raises((ValueError, TypeError)):
            lib.DataLoader(Stream(20), **options)


def test_a_shuffle_that_is_no_bool(lib):
    if lib.differs("bools-are-bools"):
        with pytest.raises(TypeError, match="shuffle"):
            lib.DataLoader(Numbers(4), 2, shuffle=3)
    else:
        assert len(list(lib.DataLoader(Numbers(4), 2, shuffle=3))) == 2


@pytest.mark.parametrize(
    "name", ["batch_size", "sampler", "batch_sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_options_cannot_be_assigned(lib, name):
    loader = lib.DataLoader(Numbers(4), 2)
    with pytest.raises(ValueError, match=name):
        setattr(loader, name, {})


def test_more_workers_than_processors(lib):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lib.DataLoader(Numbers(4), batch_size=2, num_workers=1000)
    assert bool(caught) is not lib.differs("no-warning-of-workers")
