"""`gpuloader.accelerate` without Accelerate: what it registers, refuses and skips."""

import numpy as np
import pytest

from gpuloader import BatchSampler
from gpuloader.accelerate import PreparedLoader, prepare, skip_first_batches
from gpuloader.api import prepared_loader
from tests.loading import load as load_on_cpu
from tests.rank_loaders import Stream
from tests.sample_sets import Counting, Made, values


class Accelerator:
    """Stands for Accelerate's."""

    def __init__(self, processes):
        self.num_processes = processes
        self.registered = []

    def register_for_checkpointing(self, *registered):
        self.registered += registered


def load(dataset=range(10), **options):
    return load_on_cpu(dataset, **{"batch_size": 2, **options})


@pytest.mark.parametrize(
    ("processes", "shard"), [(1, None), (1, "auto"), (2, "auto"), (2, (1, 2)), (2, (0, 1))]
)
def test_a_loader_is_registered(processes, shard):
    accelerator = Accelerator(processes)
    loader = load(shard=shard)
    prepared = prepare(accelerator, loader)
    assert accelerator.registered == [prepared]
    assert prepared.loader is loader
    assert len(prepared) == len(loader)
    assert prepared.state_dict() == loader.state_dict()
    prepared.set_epoch(3)
    assert prepared.state_dict()["epoch"] == 3


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 2),
        ({"shard": (0, 3), "uneven": "repeat"}, 6),
        ({"places": ["cpu", "cpu"]}, 4),
        ({"places": ["cpu", "cpu"], "split": "shards"}, 2),
        ({"batch_size": 1, "batch_sampler": BatchSampler(range(10), batch_size=5)}, 5),
        ({"batch_size": 1, "batch_sampler": [[0], [1, 2]]}, None),
        ({"batch_size": None}, None),
    ],
)
def test_the_samples_of_a_step_are_counted_where_all_have_as_many(options, total):
    prepared = PreparedLoader(load(**options))
    assert getattr(prepared, "total_batch_size", None) == total
    assert prepared.total_dataset_length == 10


def skip(count):
    return skip_first_batches(PreparedLoader(load()), count)


WHOLE = "each of the 2 processes would read everything: pass shard='auto'"


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: prepare(Accelerator(2), load()), ValueError, WHOLE),
        (lambda: prepare(Accelerator(1), load(static=True)), ValueError, "a loader with static=True cannot"),
        (lambda: prepare(Accelerator(1), [1, 2]), TypeError, r"expected a gpuloader.DataLoader, got list; "),
        (
            lambda: skip_first_batches(load()),
            TypeError,
            r"not prepared: prepare it, or call accelerate\.skip",
        ),
        (lambda: skip_first_batches([1, 2]), TypeError, "not prepared"),
        (lambda: skip(-1), ValueError, "num_batches must be an integer"),
        (lambda: skip(12), ValueError, "12 batches into an epoch and t.* more batches are to be skipped"),
        (lambda: PreparedLoader(load()).sampler, AttributeError, r"use gpuloader\.accelerate\.skip_first_b"),
        (lambda: PreparedLoader(load()).batch_sampler, AttributeError, r"use gpuloader\.accelerate\.skip_f"),
        (lambda: PreparedLoader(load()).other, AttributeError, r"has no other: try \.loader\.other"),
        (lambda: PreparedLoader(load(batch_size=None)).total_batch_size, AttributeError, "no common size"),
    ],
)
def test_what_is_refused(act, error, message):
    with pytest.raises(error, match=message):
        act()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [[4, 5], [6, 7], [8, 9]]),
        ({"shard": (0, 1)}, [[4, 5], [6, 7], [8, 9]]),
        ({"shard": (1, 2), "uneven": "drop"}, [[9]]),
        ({"batch_size": 1, "batch_sampler": [[0], [1], [2], [3], [4]], "shard": (0, 2)}, [[4]]),
    ],
)
def test_batches_that_are_skipped_are_not_read(options, wanted):
    reads = []
    prepared = PreparedLoader(load(Made(lambda index: reads.append(index) or np.int64(index), 10), **options))
    assert skip_first_batches(prepared, 2) is prepared
    found = [batch[0] if isinstance(batch, list) else batch for batch in prepared.loader]
    assert values(found) == wanted
    assert sorted(reads) == sorted(one for batch in wanted for one in batch)
    items = PreparedLoader(load(Stream(10), shard=(1, 2), uneven="drop"))  # are read and dropped
    assert values(skip_first_batches(items, 2).loader) == [[9]]


@pytest.mark.parametrize("options", [{}, {"shard": (0, 1)}, {"shard": (1, 2), "uneven": "repeat"}], ids=str)
def test_a_whole_epoch_can_be_skipped_and_no_more(options):
    """Its last step is shorter than the others."""
    loader = load(range(11), batch_size=4, **options)
    prepared = skip_first_batches(PreparedLoader(loader), len(loader))
    assert values(prepared.loader) == []
    assert values(prepared.loader) == values(load(range(11), batch_size=4, **options))
    with pytest.raises(ValueError, match="more batches are to be skipped than there are"):
        skip_first_batches(prepared, len(loader) + 1)


@pytest.mark.parametrize("options", [{}, {"shard": (0, 1)}, {"split": "shards"}], ids=str)
def test_steps_of_several_places_are_skipped_whole(options):
    def steps_of(loader):
        return [[place.tolist() for place in step] for step in loader]

    options = {"places": ["cpu", "cpu"], "drop_last": True, **options}
    prepared = skip_first_batches(PreparedLoader(load(**options)), 1)
    assert steps_of(prepared.loader) == steps_of(load(**options))[1:]


class Known:
    """Stands for what Accelerate knows of a loader."""

    end_of_dataloader, remainder, begun = False, -1, 0

    def begin(self):
        self.begun += 1

    def end(self):
        self.begun -= 1


@pytest.fixture
def known(monkeypatch):
    known = Known()
    monkeypatch.setattr(prepared_loader, "_make_known", lambda _: known)
    return known


def test_the_end_is_known_with_the_last_batch(known):
    ends = [(batch.tolist(), known.end_of_dataloader) for batch in PreparedLoader(load(range(6)))]
    assert ends == [([0, 1], False), ([2, 3], False), ([4, 5], True)]
    assert (known.begun, known.remainder) == (0, 0)
    assert list(PreparedLoader(load([]))) == []


def test_a_state_does_not_count_the_batch_that_was_looked_at(known):
    prepared = PreparedLoader(load(shard="auto"))
    positions = [prepared.state_dict()["position"] for _ in prepared]
    assert positions == [2, 4, 6, 8, 10]
    assert prepared.state_dict()["epoch"] == 1
    for _ in prepared:
        break
    assert known.begun == 0
    state = prepared.state_dict()
    assert (state["epoch"], state["position"]) == (1, 2)
    prepared.load_state_dict(state)
    assert len(list(prepared)) == 4


@pytest.mark.parametrize(("uneven", "real"), [("repeat", 1), ("pad", 0), ("drop", 0)])
def test_samples_of_the_last_step_are_counted_where_they_repeat(known, uneven, real):
    assert list(PreparedLoader(load(range(5), shard=(0, 2), uneven=uneven)))
    assert known.remainder == real


def test_items_that_are_skipped_are_read_once(known):
    prepared = skip_first_batches(PreparedLoader(load(Counting(10))), 2)
    assert values(prepared) == [[4, 5], [6, 7], [8, 9]]
    assert len(list(prepared)) == 5
