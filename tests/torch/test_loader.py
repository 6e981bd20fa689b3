"""What `gpuloader.torch.DataLoader` adds to PyTorch's; `tests/torch_suite` compares the two."""

import copy
import inspect
import pickle
from unittest import mock

import numpy as np
import pytest

from tests.sample_sets import Made, values

torch = pytest.importorskip("torch")

import gpuloader  # noqa: E402
from gpuloader import CPUPlace, CUDAPlace, LoaderError, SampleError  # noqa: E402
from gpuloader.api.torch_loader import _find_pin  # noqa: E402
from gpuloader.devices.places import parse_place  # noqa: E402
from gpuloader.torch import DataLoader, DistributedSampler  # noqa: E402


def test_all_options_of_ours_can_be_added():
    options = {"shard": (0, 2), "uneven": "drop", "num_workers": 2, "worker_type": "thread"}
    loader = DataLoader(range(7), 3, True, seed=5, output="numpy", **options)
    assert isinstance(next(iter(loader)), np.ndarray)
    with pytest.raises(TypeError, match="nobody"):
        DataLoader(range(7), nobody=1)


@pytest.mark.parametrize("name", ["shuffle", "persistent_workers", "in_order"])
@pytest.mark.parametrize("flag", [0, 1])
def test_flags_may_be_numbers(name, flag):
    batches = []
    for loader in (DataLoader, torch.utils.data.DataLoader):
        torch.manual_seed(2)
        batches.append([batch.tolist() for batch in loader(range(7), num_workers=1, **{name: flag})])
    assert batches[0] == batches[1]


def test_static_batches_keep_the_strides_of_a_collate_fn():
    table = torch.arange(24.0).reshape(4, 6)
    made = table[:, :-1], table.T[1:]
    for batch in DataLoader(range(2), num_workers=1, static=True, collate_fn=lambda _: made):
        for one, wanted in zip(batch, made, strict=True):
            assert (one.stride(), one.tolist()) == (wanted.stride(), wanted.tolist())


def test_the_profiler_counts_the_requests_for_a_batch():
    """The last one, which finds no further batch, counts too."""
    rows = []
    for loader in (DataLoader, torch.utils.data.DataLoader):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            list(loader(range(7), 2))
        rows += [row for row in profile.key_averages() if row.key.startswith("enumerate(DataLoader)#")]
    assert [row.count for row in rows] == [5, 5]


def interrupt():
    yield from range(9)
    raise KeyboardInterrupt


def test_an_interrupt_in_a_sampler_loses_no_batch_before_it():
    """The sampler is asked for a batch's successor before the batch is delivered."""
    loader = DataLoader(range(12), 2, sampler=interrupt(), num_workers=2, prefetch_factor=1)
    epoch = iter(loader)
    assert [next(epoch).tolist(), next(epoch).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(KeyboardInterrupt):
        next(epoch)
    with pytest.raises(LoaderError, match="interrupted"):
        next(epoch)
    again = DataLoader(range(12), 2, num_workers=2)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again)).tolist() == [4, 5]


@pytest.mark.parametrize("generator", [3, np.random.default_rng(0)])
def test_a_generator_is_pytorchs(generator):
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got "):
        DataLoader(range(7), shuffle=True, generator=generator)


def test_places_say_where_batches_land(monkeypatch):
    assert DataLoader(range(7)).places == [CPUPlace()]
    opened = []
    monkeypatch.setattr("gpuloader.api.loading.parse_places", lambda places: opened.append(places) or 1 / 0)
    for places in ("cuda", torch.device("cuda:1"), None):
        with pytest.raises(ZeroDivisionError):
            DataLoader(range(7), places=places, pin_memory=True, pin_memory_device="cuda:0")
    assert opened[:2] == ["cuda", torch.device("cuda:1")]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, list])
def test_batches_are_pinned_where_there_is_a_gpu(monkeypatch, workers, collate):
    seen = []
    monkeypatch.setattr(
        "torch.utils.data._utils.pin_memory.pin_memory", lambda batch: seen.append(batch) or batch
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    _find_pin.cache_clear()
    loader = DataLoader(range(7), 3, num_workers=workers, pin_memory=True, collate_fn=collate)
    assert len([*loader]) == 3
    assert not seen
    _find_pin.cache_clear()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    loader = DataLoader(range(7), 3, num_workers=workers, pin_memory=True, collate_fn=collate)
    batches = [*loader]
    assert all(one is other for one, other in zip(batches, seen, strict=True))
    loader.pin_memory = False  # takes effect with the next epoch
    assert len([*loader]) == len(seen) == 3
    _find_pin.cache_clear()


def test_a_batch_that_could_not_be_pinned_is_not_lost(monkeypatch):
    def pin(batch):
        if batch[0] == 3:
            raise RuntimeError("no memory to pin")
        return batch

    monkeypatch.setattr("gpuloader.api.torch_loader._find_pin", lambda: pin)
    loader = DataLoader(range(9), 3, pin_memory=True)
    epoch = iter(loader)
    next(epoch)
    with pytest.raises(RuntimeError, match="no memory to pin"):
        next(epoch)
    state = loader.state_dict()
    monkeypatch.undo()
    resumed = DataLoader(range(9), 3)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [[3, 4, 5], [6, 7, 8]]


def test_devices_are_places():
    assert parse_place(torch.device("cuda:1")) == parse_place("cuda:1") == CUDAPlace(1)
    assert parse_place(torch.device("cpu")) == parse_place("cpu")
    batch = next(iter(DataLoader(range(7), 2, places=torch.device("cpu"))))
    assert batch.device == torch.device("cpu")
    assert batch.to("cpu") is batch


def test_a_copy_by_attributes_finds_its_number_of_workers_too():
    """Trainers make loaders of what is in `vars`, and compute with the attributes."""
    loader = DataLoader(range(8), num_workers="auto", prefetch_factor=3)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 3)
    shown = {name: vars(loader)[name] for name in ("dataset", "num_workers", "prefetch_factor")}
    assert DataLoader(**shown)._epochs.workers == loader._epochs.workers
    loader.num_workers = 2
    assert (loader.num_workers, vars(loader)["num_workers"], loader._epochs.workers.most) == (2, 2, 0)


def test_arrays_that_no_tensor_can_be_are_copied_where_others_are_not():
    plain, flipped, fixed = np.zeros((2, 3)), np.arange(2.0)[::-1], np.ones(2)
    fixed.flags.writeable = False
    made = [(plain, flipped, fixed)]
    reader = gpuloader.DataLoader.from_generator(capacity=1, output="torch", copy=False)
    dataset = gpuloader.DataLoader(made, places="cpu", batch_size=None, output="torch", copy=False)
    for loader in (reader.set_batch_generator(lambda: made, "cpu"), dataset):
        [found] = loader
        assert found[0].data_ptr() == plain.ctypes.data
        assert found[2].data_ptr() != fixed.ctypes.data
        assert [one.tolist() for one in found] == [one.tolist() for one in made[0]]


def test_copies_draw_from_copies_of_the_generator():
    loader = DataLoader(list(range(7)), 3, shuffle=True, generator=torch.Generator().manual_seed(5))
    copies = copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))
    order = [values(loader) for _ in range(2)]
    for again in copies:
        assert type(again) is DataLoader
        assert [values(again) for _ in range(2)] == order
        assert again.generator.initial_seed() == 5
    assert list(pickle.loads(pickle.dumps(DataLoader([1, 2], batch_size=None)))) == [1, 2]


@pytest.mark.filterwarnings("ignore:the loader calls:UserWarning")
@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copy_begins_with_the_first_epoch_of_its_sampler(make):
    def read(loader):
        return [values(loader) for _ in range(2)]

    sampler = DistributedSampler(range(12), 2, 0)
    loader = DataLoader(range(12), 3, sampler=sampler)
    first = read(loader)
    second = read(make(loader))
    assert first == second
    assert first[0] != first[1]
    third = values(loader)
    assert third not in first


def test_what_lists_attributes_does_not_prepare_a_loader_for_accelerate():
    loader = DataLoader(range(4), 2, on_bad="skip")
    listed = dict(inspect.getmembers(loader))
    assert "batch_sampler" in listed
    assert not hasattr(loader, "iteration")
    assert not hasattr(mock.create_autospec(loader), "iteration")
    assert "_is_accelerate_prepared" not in listed
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'other'"):
        loader.other  # noqa: B018


def seed_everything(worker):
    torch.manual_seed(7)
    np.random.seed(7)


def test_a_datasets_own_generator_stays_as_it_is():
    own = np.random.default_rng(3)
    drawing = Made(lambda index: own.random(), 4)
    loader = DataLoader(drawing, 4, seed=1, num_workers=1, worker_init_fn=seed_everything)
    assert next(iter(loader)).tolist() == np.random.default_rng(3).random(4).tolist()


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_sampler_with_a_state_of_its_own_is_warned_of(name):
    class Stateful(list):
        def load_state_dict(self, state):
            raise AssertionError

    loader = DataLoader(range(4), **{name: Stateful([[0, 1]] if name == "batch_sampler" else [1, 0])})
    with pytest.warns(UserWarning, match=f"the state_dict of the {name}, of type Stateful"):
        loader.load_state_dict(loader.state_dict())


class OneBuffer(gpuloader.IterableDataset):
    """A stream whose items share one tensor, which each item fills."""

    def __iter__(self):
        row = torch.zeros(3)
        for number in range(6):
            yield row.fill_(number), number


def test_a_stream_may_fill_one_tensor_again_for_each_item():
    """Every item is written before the next one is read, in later batches, too."""
    loader = gpuloader.DataLoader(OneBuffer(), places="cpu", batch_size=2, use_buffer_reader=False)
    found = [(rows[:, 0].tolist(), numbers.tolist()) for rows, numbers in loader]
    assert found == [([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4, 5], [4, 5])]


@pytest.mark.parametrize("make", [
    lambda index, value: value,
    lambda index, value: (str(index), value),
    lambda index, value: {"row": torch.zeros(2), "of": {"name": str(index), "number": value}},
])  # fmt: skip
@pytest.mark.parametrize(
    ("value", "found"), [(2.5, "expected"), (2**70, "expected"), (None, "None"), (True, "")]
)
def test_a_value_that_does_not_fit_its_column_is_named(make, value, found):
    """The other batches are right, before and after it."""
    samples = [make(index, value if index == 9 else index) for index in range(16)]
    loader = gpuloader.DataLoader(samples, places="cpu", batch_size=4, use_buffer_reader=False)
    batches, numbers = iter(loader), []
    for _ in range(2):
        numbers += find_numbers(next(batches))
    assert numbers == [*range(8)]
    if found:
        with pytest.raises(SampleError, match=rf"batch 2, sample 1, dataset index 9.*{found}"):
            next(batches)
    else:
        assert find_numbers(next(batches)) == [8, 1, 10, 11]
        assert find_numbers(next(batches)) == [12, 13, 14, 15]


def find_numbers(batch):
    """Return the numbers of a batch of one of the forms above."""
    if isinstance(batch, dict):
        assert batch["row"].shape == (4, 2)
        names, batch = batch["of"]["name"], batch["of"]["number"]
        assert len(names) == 4
    if isinstance(batch, list):
        names, batch = batch
        assert all(name in (str(number), "9") for name, number in zip(names, batch.tolist(), strict=True))
    return batch.tolist()
