"""States saved in mid-epoch, what must follow them, and random numbers, as recorded in `tests/golden`.

A checkpoint outlives the version of the package that wrote it. After an intended change,
``python -m tests.test_golden_states`` records everything again whose libraries are installed.
"""

import itertools
import json
import os

import numpy as np
import pytest

import gpuloader
from gpuloader import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info, transforms
from gpuloader.accelerate import PreparedLoader
from tests.golden import recording
from tests.golden.recording import plain
from tests.sample_sets import Stateful

SEED = 5
THREADS = {"num_workers": 2, "worker_type": "thread"}


class Draws(Dataset):
    """Each sample is its index and what is drawn for it."""

    def __getitem__(self, index):
        rng = gpuloader.sample_rng()
        return index, rng.random(), rng.integers(1 << 40)

    def __len__(self):
        return 9


class DrawsAtOnce(Draws):
    """The same, by `sample_rngs`."""

    def __getitems__(self, indices):
        rngs = gpuloader.sample_rngs(indices)
        return [
            (index, rng.random(), rng.integers(1 << 40)) for index, rng in zip(indices, rngs, strict=True)
        ]


class DrawnStream(IterableDataset):
    """Items with what is drawn by the worker that reads them."""

    def __iter__(self):
        info = get_worker_info()
        for number in range(10 if info is None else info.id, 20, 1 if info is None else info.num_workers):
            yield number, gpuloader.sample_rng().random()


class ForeignLoader:
    """Another library's loader, which counts its batches."""

    def __init__(self):
        self.given = 0

    def __iter__(self):
        for number in range(self.given, 8):
            self.given = number + 1
            yield {"x": np.arange(3) + number}
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class ForeignStateless:
    """Another library's loader, which can only be begun again."""

    def __iter__(self):
        return iter([np.full(2, number) for number in range(8)])


def load(dataset=None, **options):
    dataset = list(range(17)) if dataset is None else dataset
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 3, "seed": SEED, **options})


def generate(method, reader, **options):
    loader = DataLoader.from_generator(capacity=2, **options)
    getattr(loader, f"set_{method}_generator")(
        reader, places="cpu", **({"batch_size": 3} if method == "sample" else {})
    )
    return loader


def mixed(**options):
    return load(gpuloader.MixDataset([range(6), range(100, 130)], [2, 1], **options), shuffle=True)


def with_torch(**options):
    pytest.importorskip("torch")
    from gpuloader.torch import DataLoader as TorchLoader

    seed = 4095051218741643470  # what earlier releases drew from torch.Generator().manual_seed(SEED)
    return TorchLoader(list(range(17)), 3, seed=seed, **options)


def with_keras():
    pytest.importorskip("keras")
    from gpuloader.keras import DataLoader as KerasLoader

    return KerasLoader(list(range(17)), places="cpu", batch_size=3, shuffle=True, seed=SEED)


def parquet(**options):
    pytest.importorskip("pyarrow")
    dataset = gpuloader.ParquetDataset(["0.parquet", "1.parquet"], shuffle=True, shuffle_buffer=8, seed=SEED)
    return load(dataset, batch_size=7, **options)


def tar(**options):
    dataset = gpuloader.TarDataset([f"{shard}.tar" for shard in range(3)], shuffle=True, seed=SEED)
    return load(dataset, **options)


def table():
    return load(gpuloader.TableDataset({"x": np.arange(11.0), "t": [f"t{one}" for one in range(11)]}))


def paddle_reader():
    loader = gpuloader.fluid.io.PyReader(capacity=2, return_list=True)
    loader.decorate_sample_generator(lambda: ((number,) for number in range(20)), 3, places="cpu")
    return loader


def prepared():
    pytest.importorskip("accelerate")
    return PreparedLoader(load(shuffle=True))


def two_places(**options):
    return load(places=[gpuloader.CPUPlace()] * 2, batch_size=4, shuffle=True, **options)


LOADERS = {
    "in order": load,
    "shuffled": lambda: load(shuffle=True),
    "shuffled, threads": lambda: load(shuffle=True, **THREADS),
    "kept in memory": lambda: load(TensorDataset(np.arange(17)), shuffle=True, cache="host"),
    "single samples": lambda: load(batch_size=None, shuffle=True),
    "weighted": lambda: load(sampler=gpuloader.WeightedRandomSampler(range(17), 14)),
    "replaced": lambda: load(sampler=gpuloader.RandomSampler(range(17), replacement=True)),
    "subset random": lambda: load(sampler=gpuloader.SubsetRandomSampler(range(0, 17, 2))),
    "a list of indices": lambda: load(sampler=list(range(16, -1, -1))),
    "batches": lambda: load(
        batch_size=1, batch_sampler=gpuloader.BatchSampler(range(17), shuffle=True, batch_size=3)
    ),
    "buckets": lambda: load(
        batch_size=1, batch_sampler=gpuloader.BucketSampler([3 * n % 7 for n in range(17)], 3, pool=2)
    ),
    "distributed": lambda: load(
        batch_size=1, batch_sampler=gpuloader.DistributedBatchSampler(range(17), 3, 2, 1, shuffle=True)
    ),
    "a subset": lambda: load(gpuloader.Subset(range(40), range(3, 20)), shuffle=True),
    "concatenated": lambda: load(gpuloader.ConcatDataset([range(6), range(10, 21)]), shuffle=True),
    "a mix": mixed,
    "a mix that repeats": lambda: mixed(at_end="repeat"),
    "one rank": lambda: load(shuffle=True, shard=(1, 2)),
    "one rank, dropped": lambda: load(shuffle=True, shard=(0, 2), uneven="drop"),
    "two places": two_places,
    "two shards": lambda: two_places(split="shards", uneven="pad"),
    "tokens": lambda: load(gpuloader.TokenWindows(np.arange(50), 4, stride=3), shuffle=True),
    "a table": table,
    "a stream": lambda: load(DrawnStream()),
    "a stream, threads": lambda: load(DrawnStream(), **THREADS),
    "a stream, one rank": lambda: load(DrawnStream(), shard=(1, 2)),
    "a stream with a state": lambda: load(Stateful(20)),
    "a stream with a state, processes": lambda: load(Stateful(20), num_workers=2, start_method="fork"),
    "chained": lambda: load(gpuloader.ChainDataset([Stateful(4), Stateful(15)])),
    "samples of a reader": lambda: generate("sample", lambda: ((number,) for number in range(20))),
    "lists of a reader": lambda: generate(
        "sample_list", lambda: ([(number,), (number + 1,)] for number in range(8))
    ),
    "batches of a reader": lambda: generate(
        "batch", lambda: ([np.arange(3) + number] for number in range(8))
    ),
    "Paddle's reader": paddle_reader,
    "prefetched": lambda: gpuloader.prefetch(ForeignLoader(), "cpu"),
    "prefetched, threads": lambda: gpuloader.prefetch(ForeignLoader(), "cpu", 3),
    "prefetched without a state": lambda: gpuloader.prefetch(ForeignStateless(), "cpu", seed=SEED),
    "prefetched list": lambda: gpuloader.prefetch([np.full(2, number) for number in range(8)], "cpu"),
    "prepared": prepared,
    "Parquet": parquet,
    "Parquet, threads": lambda: parquet(**THREADS),
    "tar": tar,
    "tar, threads": lambda: tar(**THREADS),
    "PyTorch's": lambda: with_torch(shuffle=True),
    "PyTorch's, threads": lambda: with_torch(shuffle=True, **THREADS),
    "Keras's": with_keras,
}

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 12, 10, 3), np.uint8)
LABELS = np.array([0, 2, 1, 1, 2])
NUMBERS = ["draws", "draws at once", "drawn stream", "drawn stream, threads"]
TRANSFORMS = {
    "Cast": [transforms.Cast("0", "float16", 0.5)],
    "CenterCrop": [transforms.CenterCrop("0", (7, 6))],
    "ColorJitter": [transforms.ColorJitter("0", 0.4, 0.3, 0.2, 0.1)],
    "CutMix": [transforms.Cast("0", "float32"), transforms.CutMix("0", "1", 3, layout="HWC")],
    "MixUp": [transforms.Cast("0", "float32"), transforms.MixUp("0", "1", 3, alpha=0.4)],
    "Normalize": [transforms.Normalize("0", (0.4, 0.5, 0.6), 0.25, 1 / 255, crop=(8, 8), flip=True)],
    "OneHot": [transforms.OneHot("1", 4)],
    "Pad": [transforms.Pad("0", 4, -1)],
    "RandomCropFlip": [transforms.RandomCropFlip("0", (7, 6))],
    "RandomErasing": [transforms.RandomErasing("0", 0.9, value=3, layout="HWC")],
    "RandomFlip": [transforms.RandomFlip("0"), transforms.RandomFlip("0", 0.4, "vertical")],
    "RandomResizedCrop": [transforms.RandomResizedCrop("0", 6)],
    "Resize": [transforms.Resize("0", (5, 9), "bicubic")],
    "several": [
        transforms.RandomResizedCrop("0", 8),
        transforms.RandomFlip("0"),
        transforms.ColorJitter("0", hue=0.3),
        transforms.Normalize("0", 0.5, 0.25, 1 / 255),
        transforms.RandomErasing("0", 0.5),
        transforms.MixUp("0", "1", 3),
    ],
}


def read_batches(loader, stop=None):
    """Return the rest of an epoch, or as many batches as given, with the state behind each."""
    found, epoch = [], iter(loader)
    for batch in itertools.islice(epoch, stop):
        found.append((plain(batch), json.loads(json.dumps(loader.state_dict()))))
    epoch.close()  # its threads would outlive the test
    return found


def observe_state(name):
    """Return the states after each of the first batches, and what follows the second."""
    loader = LOADERS[name]()
    first = read_batches(loader, 3)
    return {"states": [state for _, state in first], "follows": follow(name, first[1][1])}


def follow(name, state):
    """Return the batches behind a state, and the first one of the next epoch."""
    loader = LOADERS[name]()
    loader.load_state_dict(state)
    rest = [batch for batch, _ in read_batches(loader)]
    return [rest, [batch for batch, _ in read_batches(loader, 1)]]


def observe_draws(name):
    """Return two epochs of random numbers."""
    dataset = {"draws": Draws, "draws at once": DrawsAtOnce}.get(name, DrawnStream)()
    loader = load(dataset, **(THREADS if "threads" in name else {}))
    return [[plain(batch) for batch in loader] for _ in range(2)]


def observe_transform(name):
    """Return one epoch of pictures, or of rows of different lengths."""
    if name == "Pad":
        samples, options = [np.arange(count) for count in (2, 4, 0, 3)], {"ragged": ["0"]}
        samples = [(row, np.int64(1)) for row in samples]
    else:
        samples, options = list(zip(PIXELS, LABELS, strict=True)), {}
    loader = load(samples, transforms=TRANSFORMS[name], shuffle=True, **options)
    return [plain(batch) for batch in loader]


@pytest.fixture(scope="module", autouse=True)
def files():
    with recording.in_folder_of_files():
        yield


@pytest.fixture(scope="module")
def recorded():
    return {name: recording.read(name) for name in ("states", "draws")}


@pytest.mark.parametrize("name", LOADERS)
def test_a_recorded_state_is_continued_and_made_again(name, recorded):
    wanted = recorded["states"][name]
    assert follow(name, wanted["states"][1]) == wanted["follows"]
    assert observe_state(name) == wanted


@pytest.mark.parametrize("name", NUMBERS)
def test_random_numbers_are_the_recorded_ones(name, recorded):
    assert observe_draws(name) == recorded["draws"][name]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_do_what_is_recorded(name, recorded):
    pytest.importorskip("PIL")
    assert observe_transform(name) == recorded["draws"][name]


def write():
    os.environ.setdefault("KERAS_BACKEND", "torch")  # as in conftest.py
    with recording.in_folder_of_files():
        recording.update("states", LOADERS, observe_state)
        recording.update("draws", NUMBERS, observe_draws)
        recording.update("draws", TRANSFORMS, observe_transform)


if __name__ == "__main__":
    write()
