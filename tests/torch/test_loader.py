"""The drop-in loader beside PyTorch's own: the same program, the same batches."""

import collections
import multiprocessing

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader as Theirs  # noqa: E402

from gpuloader import CPUPlace, CUDAPlace, SampleError, WorkerTimeout  # noqa: E402
from gpuloader.fetch.processes.fork_server import prepare_server  # noqa: E402
from gpuloader.torch import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)
from tests.alike import same  # noqa: E402
from tests.fakes import nothing_left_behind  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")


def assert_alike(dataset, *arguments, **options):
    ours = list(DataLoader(dataset, *arguments, **options))
    theirs = list(Theirs(dataset, *arguments, **options))
    assert same(ours, theirs), (ours, theirs)
    assert len(DataLoader(dataset, *arguments, **options)) == len(theirs)


class Made(torch.utils.data.Dataset):
    def __init__(self, make, count=7):
        self.make, self.count = make, count

    def __getitem__(self, index):
        return self.make(index)

    def __len__(self):
        return self.count


def named(index):
    return {"image": torch.full((2, 3), float(index)), "label": index, "name": f"sample {index}"}


SAMPLES = {
    "tensor": lambda index: torch.full((2, 2), index, dtype=torch.int32),
    "array": lambda index: np.full(3, index, np.float32),
    "int": lambda index: index,
    "float": lambda index: index / 2,
    "bool": lambda index: index % 2 == 0,
    "numpy number": lambda index: np.float32(index),
    "tuple": lambda index: (torch.zeros(2), index),
    "list": lambda index: [torch.zeros(2), index],
    "dict": named,
    "dict in a tuple": lambda index: (named(index), index / 2),
    "text": lambda index: f"sample {index}",
    "no dimensions": lambda index: torch.tensor(index),
}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(
    "arguments", [(), (3,), (3, False), (3, None, None, None, 0, None, True, True)], ids=str
)
def test_batches_are_alike(sample, arguments):
    assert_alike(Made(SAMPLES[sample]), *arguments)


class TestArguments:
    def test_the_signature_begins_with_pytorchs(self):
        import inspect

        theirs = inspect.signature(Theirs.__init__).parameters
        ours = inspect.signature(DataLoader.__init__).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        for name, parameter in theirs.items():
            assert ours[name].kind == parameter.kind, name
            assert ours[name].default == parameter.default, name

    @pytest.mark.parametrize(
        "options",
        [
            {"batch_size": 3, "drop_last": True},
            {"batch_size": 2, "sampler": [4, 0, 2]},
            {"batch_size": 2, "sampler": torch.tensor([4, 0, 2])},
            {"batch_sampler": [[0, 1], [2]]},
            {"batch_size": 3, "collate_fn": torch.stack},
            {"batch_size": None},
            {"batch_size": 3, "num_workers": 2},
            {
                "batch_size": 3,
                "num_workers": 2,
                "prefetch_factor": 3,
                "persistent_workers": True,
                "timeout": 30,
            },
            {"batch_size": 3, "num_workers": 1, "multiprocessing_context": "fork"},
            {
                "batch_size": 3,
                "num_workers": 1,
                "multiprocessing_context": multiprocessing.get_context("fork"),
            },
        ],
        ids=lambda options: " ".join(options),
    )
    def test_they_have_the_same_effect(self, options):
        prepare_server()  # it stays
        with nothing_left_behind():
            assert_alike(Made(lambda index: torch.tensor([index, -index])), **options)

    def test_all_of_ours_can_be_added(self):
        loader = DataLoader(Made(float), 3, True, seed=5, shard=(0, 2), uneven="drop", output="numpy")
        assert isinstance(next(iter(loader)), np.ndarray)
        with pytest.raises(TypeError, match="nobody"):
            DataLoader(Made(float), nobody=1)

    @pytest.mark.parametrize(
        "options", [{"timeout": 5}, {"prefetch_factor": 3}, {"multiprocessing_context": "spawn"}], ids=str
    )
    def test_those_of_workers_are_ignored_without_workers(self, options):
        """PyTorch refuses them, so that num_workers=0 is not the only change when debugging."""
        with pytest.raises((ValueError, AssertionError)):
            list(Theirs(Made(float), 7, **options))
        assert len(list(DataLoader(Made(float), 7, **options))) == 1

    def test_a_thread_can_load(self):
        loader = DataLoader(Made(float), 7, num_workers=2, worker_type="thread")
        assert next(iter(loader)).tolist() == [0, 1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize(
        "options",
        [
            {"batch_size": 0},
            {"batch_size": 2.5},
            {"num_workers": -1},
            {"timeout": -1},
            {"num_workers": 2, "prefetch_factor": -1},
            {"persistent_workers": True},
            {"sampler": [1], "shuffle": True},
            {"batch_sampler": [[1]], "batch_size": 2},
            {"batch_sampler": [[1]], "drop_last": True},
            {"batch_size": None, "drop_last": True},
            {"num_workers": 1, "multiprocessing_context": "exec"},
        ],
        ids=str,
    )
    def test_what_pytorch_refuses_is_refused_with_the_same_type(self, options):
        with pytest.raises(ValueError):  # noqa: PT011
            Theirs(Made(float), **options)
        with pytest.raises(ValueError):  # noqa: PT011
            DataLoader(Made(float), **options)

    def test_places_say_where_batches_land(self, monkeypatch):
        assert DataLoader(Made(float)).places == [CPUPlace()]
        opened = []
        monkeypatch.setattr(
            "gpuloader.api.loading.parse_places", lambda places: opened.append(places) or 1 / 0
        )
        for places in ("cuda", torch.device("cuda:1"), None):
            with pytest.raises(ZeroDivisionError):
                DataLoader(Made(float), places=places, pin_memory=True, pin_memory_device="cuda:0")
        assert opened[:2] == ["cuda", torch.device("cuda:1")]

    def test_devices_are_places(self):
        from gpuloader.devices.places import parse_place

        assert parse_place(torch.device("cuda:1")) == parse_place("cuda:1") == CUDAPlace(1)
        assert parse_place(torch.device("cpu")) == parse_place("cpu")
        batch = next(iter(DataLoader(Made(float), 2, places=torch.device("cpu"))))
        assert batch.device == torch.device("cpu")
        assert batch.to("cpu") is batch


class Lines(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 7, step))

    def __len__(self):
        return 7


class OwnLines(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 7, step))


class TestIterableDatasets:
    @pytest.mark.parametrize(
        "options", [{}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}], ids=str
    )
    def test_they_are_alike(self, options):
        assert_alike(Lines(), **options)

    def test_single_items_stay_what_they_are(self):
        assert_alike(Lines(), batch_size=None)

    def test_workers_take_turns(self):
        assert same(list(DataLoader(Lines(), 2, num_workers=2)), list(Theirs(Lines(), 2, num_workers=2)))
        assert same(
            list(DataLoader(OwnLines(), 2, num_workers=2)), list(DataLoader(Lines(), 2, num_workers=2))
        )

    def test_the_length_is_the_data_sets(self):
        for options in ({}, {"drop_last": True}, {"batch_size": None}, {"num_workers": 2}):
            options = {"batch_size": 3, **options}
            assert len(DataLoader(Lines(), **options)) == len(Theirs(Lines(), **options))
        with pytest.raises(TypeError):
            len(DataLoader(OwnLines(), 2))


class TestSingleSamples:
    @pytest.mark.parametrize("name", SAMPLES)
    def test_numbers_and_text_stay_and_arrays_become_tensors(self, name):
        assert_alike(Made(SAMPLES[name]), batch_size=None)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_batch_sampler_reads_whole_batches(self, workers):
        dataset = TensorDataset(torch.arange(10.0).reshape(5, 2), torch.arange(5))
        sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(dataset), 2, False)
        assert same(
            list(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)),
            list(map(list, Theirs(dataset, sampler=sampler, batch_size=None))),
        )


class TestAttributes:
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
    def test_they_are_pytorchs(self, options):
        dataset = Made(float)
        ours, theirs = DataLoader(dataset, **options), Theirs(dataset, **options)
        same_value = (
            "dataset batch_size drop_last num_workers pin_memory pin_memory_device timeout worker_init_fn "
            "generator prefetch_factor persistent_workers in_order multiprocessing_context"
        )
        for name in same_value.split():
            assert getattr(ours, name) == getattr(theirs, name), name
        assert (ours.batch_sampler is None) == (theirs.batch_sampler is None)
        if ours.batch_sampler is not None and not options.get("shuffle"):
            assert list(ours.batch_sampler) == list(theirs.batch_sampler)
        assert ours.collate_fn.__name__ == theirs.collate_fn.__name__

    def test_the_default_functions_are_pytorchs(self):
        samples = [(torch.zeros(2), 1, "a"), (torch.ones(2), 2, "b")]
        assert same(DataLoader(samples).collate_fn(samples), Theirs(samples).collate_fn(samples))
        assert same(default_collate(samples), torch.utils.data.default_collate(samples))
        convert = DataLoader(samples, batch_size=None).collate_fn
        assert convert is default_convert
        assert same(convert(np.zeros(2)), torch.utils.data.default_convert(np.zeros(2)))
        assert DataLoader(samples, collate_fn=list).collate_fn is list

    def test_a_loader_can_be_made_from_anothers_attributes(self):
        """As trainers do."""
        ours = DataLoader(Made(named), 3, num_workers=0)
        names = [
            "dataset", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "timeout",
            "worker_init_fn", "generator", "prefetch_factor", "persistent_workers",
        ]  # fmt: skip
        options = {name: getattr(ours, name) for name in names}
        assert same(list(Theirs(**options)), list(ours))
        assert same(list(DataLoader(**options)), list(ours))

    def test_those_that_pytorch_refuses_to_change_are_refused_with_the_same_type(self):
        theirs, ours = Theirs(Made(float)), DataLoader(Made(float))
        for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
            for loader in (theirs, ours):
                with pytest.raises(ValueError, match=name):
                    setattr(loader, name, getattr(loader, name))

    def test_it_is_no_instance_of_pytorchs(self):
        """So trainers use it as it is, and do not make a loader of PyTorch out of it."""
        assert not isinstance(DataLoader(Made(float)), Theirs)


class TestSeeds:
    def epochs(self, loader, count=2):
        return [[batch.tolist() for batch in loader] for _ in range(count)]

    def test_manual_seed_determines_the_order(self):
        def load():
            return self.epochs(DataLoader(Made(float), 3, True))

        orders = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            orders.append(load())
        assert orders[0] == orders[1] != orders[2]
        assert orders[0][0] != orders[0][1]

    def test_seeding_again_changes_no_later_epoch(self):
        """The seed is drawn once; PyTorch would repeat the first epoch."""
        torch.manual_seed(0)
        loader = DataLoader(Made(float), 3, True)
        [first] = self.epochs(loader, 1)
        torch.manual_seed(0)
        [second] = self.epochs(loader, 1)
        assert second != first
        loader.set_epoch(0)
        assert self.epochs(loader, 1) == [first]

    def test_a_generator_determines_the_order(self):
        def load(seed, **options):
            generator = torch.Generator().manual_seed(seed)
            return self.epochs(DataLoader(Made(float), 3, shuffle=True, generator=generator, **options))

        assert load(5) == load(5) == load(5, num_workers=2) != load(6)

    def test_it_is_drawn_from_when_the_loader_is_made(self):
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(Made(float), 3, shuffle=True, generator=generator)
        generator.manual_seed(99)
        again = DataLoader(Made(float), 3, shuffle=True, generator=torch.Generator().manual_seed(5))
        assert self.epochs(loader) == self.epochs(again)
        assert loader.generator is generator

    def test_copies_have_the_seed(self):
        import copy
        import pickle

        loader = DataLoader(list(range(7)), 3, shuffle=True, generator=torch.Generator().manual_seed(5))
        order = self.epochs(loader)
        for again in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert type(again) is DataLoader
            assert self.epochs(again) == order
            assert again.generator.initial_seed() == 5
        single = pickle.loads(pickle.dumps(DataLoader([1, 2], batch_size=None)))
        assert list(single) == [1, 2]

    def test_a_sampler_of_pytorch_keeps_pytorchs_order(self):
        dataset = Made(float, 20)

        def sampler():
            return torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(5))

        ours, theirs = DataLoader(dataset, 6, sampler=sampler()), Theirs(dataset, 6, sampler=sampler())
        for _ in range(2):
            assert same(list(ours), list(theirs))


class Draws(Dataset):
    def __getitem__(self, index):
        return float(torch.rand(1)), float(np.random.rand())

    def __len__(self):
        return 4


class Owner(Dataset):
    """Draws with a generator of its own."""

    def __init__(self):
        self.own = np.random.default_rng(3)

    def __getitem__(self, index):
        return self.own.random()

    def __len__(self):
        return 4


def seed_everything(worker):
    torch.manual_seed(7)
    np.random.seed(7)


class TestWorkers:
    def test_global_seeds_of_worker_init_fn_have_no_effect(self):
        """The loader seeds them before each batch, so the numbers do not depend on the workers."""

        def draw(**options):
            return list(
                DataLoader(Draws(), 2, seed=1, num_workers=1, multiprocessing_context="fork", **options)
            )

        assert same(draw(worker_init_fn=seed_everything), draw())

    def test_a_generator_of_ones_own_stays_as_it_is(self):
        expected = np.random.default_rng(3).random(4).tolist()
        loader = DataLoader(Owner(), 4, seed=1, num_workers=1, worker_init_fn=seed_everything)
        assert next(iter(loader)).tolist() == expected

    def test_both_kinds_of_worker_info_are_there(self):
        class Asking(torch.utils.data.Dataset):
            def __getitem__(self, index):
                theirs, ours = torch.utils.data.get_worker_info(), get_worker_info()
                return theirs.id, ours.id, theirs.num_workers, theirs.seed == ours.seed

            def __len__(self):
                return 2

        loader = DataLoader(Asking(), 2, num_workers=1, multiprocessing_context="fork")
        assert [field.tolist() for field in next(iter(loader))] == [[0, 0], [0, 0], [1, 1], [True, True]]


class Failing(Dataset):
    def __getitem__(self, index):
        if index == 3:
            raise KeyError("no such file")
        return index

    def __len__(self):
        return 6


class TestErrors:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_data_sets_exception_is_the_cause(self, workers):
        epoch = iter(DataLoader(Failing(), 2, num_workers=workers))
        assert next(epoch).tolist() == [0, 1]
        with pytest.raises(SampleError, match="dataset index 3") as caught:
            next(epoch)
        assert isinstance(caught.value, RuntimeError)
        assert type(caught.value.__cause__) is KeyError
        with pytest.raises(StopIteration):  # the epoch is over, as with PyTorch's workers
            next(epoch)

    def test_the_two_lines_that_raise_it_as_pytorch_does(self):
        with pytest.raises(KeyError, match="no such file"):
            try:
                list(DataLoader(Failing(), 2))
            except SampleError as error:
                raise (error.__cause__ or error) from None

    def test_a_timeout_is_a_runtime_error(self):
        import time

        loader = DataLoader(Made(lambda index: time.sleep(30)), num_workers=1, timeout=0.05)
        with pytest.raises(RuntimeError) as caught:
            next(iter(loader))
        assert isinstance(caught.value, WorkerTimeout)


class TestDistributedSampler:
    def test_the_loader_calls_set_epoch(self):
        dataset = Made(float, 8)
        sampler = DistributedSampler(dataset, num_replicas=2, rank=0, seed=1)
        reference = DistributedSampler(dataset, num_replicas=2, rank=0, seed=1)
        loader, theirs = DataLoader(dataset, 2, sampler=sampler), Theirs(dataset, 2, sampler=reference)
        for epoch in range(3):
            reference.set_epoch(epoch)
            assert same(list(loader), list(theirs))

    def test_a_program_that_calls_it_itself_is_not_disturbed(self):
        dataset = Made(float, 8)
        sampler = DistributedSampler(dataset, num_replicas=2, rank=0, seed=1)
        reference = DistributedSampler(dataset, num_replicas=2, rank=0, seed=1)
        loader, theirs = DataLoader(dataset, 2, sampler=sampler), Theirs(dataset, 2, sampler=reference)
        for epoch in (5, 6, 7):  # a run that was resumed
            loader.sampler.set_epoch(epoch)
            reference.set_epoch(epoch)
            assert same(list(loader), list(theirs))


class TestRandomSplit:
    @pytest.mark.parametrize("lengths", [[8, 2], [0.7, 0.2, 0.1], [0.5, 0.5]])
    def test_it_makes_the_same_parts(self, lengths):
        theirs = torch.utils.data.random_split
        for make in (lambda: torch.Generator().manual_seed(42), lambda: torch.manual_seed(3) and None):
            generator = make()
            ours = [list(part) for part in random_split(range(10), lengths, generator)]
            generator = make()
            arguments = (range(10), lengths) if generator is None else (range(10), lengths, generator)
            assert ours == [list(part) for part in theirs(*arguments)]


def test_a_program_runs_after_its_import_line_was_changed():
    """The names, the positions and the idioms of a training script."""
    torch.manual_seed(0)
    images, labels = torch.rand(20, 4), torch.randint(0, 3, (20,))
    train, test = random_split(TensorDataset(images, labels), [16, 4])
    sampler = RandomSampler(train, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(train, 4, sampler=sampler, num_workers=0, pin_memory=True)
    held_out = DataLoader(test, batch_sampler=BatchSampler(SequentialSampler(test), 2, False))
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = collections.Counter()
    for _ in range(2):
        for x, y in loader:
            x, y = x.to("cpu", non_blocking=True), y.to("cpu", non_blocking=True)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.update(map(tuple, x.tolist()))
    assert len(loader) == 4
    assert len(loader.dataset) == len(loader.sampler) == 16
    assert set(seen.values()) == {2}
    assert sum(len(y) for _, y in held_out) == 4
