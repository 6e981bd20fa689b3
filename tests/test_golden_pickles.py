"""Pickles of public objects, recorded in `tests/golden`, which later versions must load and use as before.

Users keep pickled datasets, and pickle loaders and places into jobs of other machines. After an intended
change, ``python -m tests.test_golden_pickles`` records everything again whose libraries are installed. A
recorded pickle also names the classes in it, so that a diff shows which of them moved.
"""

import base64
import io
import itertools
import os
import pickle
import re

import numpy as np
import pytest

import gpuloader
from gpuloader import DataLoader, FeedSpec, Picture, Ragged, TensorDataset, fluid, transforms
from gpuloader.sources import mnist
from gpuloader.vision import transforms as vision
from tests.golden import recording
from tests.golden.recording import plain
from tests.sample_sets import Counting

IMAGES, TABLES = ["images/cat/0.png", "images/dog/1.png"], ["0.parquet", "1.parquet"]
SHUFFLED = {"shuffle": True, "seed": 5}
ITEMS = [(index, float(index)) for index in range(7)]
ARRAYS = (np.arange(14.0).reshape(7, 2), np.arange(7))


def load(dataset=ITEMS, **options):
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 3, "shuffle": True, "seed": 5, **options})


def needing(library, make):
    """Return a function that makes an object, or skips the test where a library is missing."""

    def make_if_installed():
        pytest.importorskip(library)
        return make()

    return make_if_installed


def with_torch(name, *arguments, **options):
    """Return a function that makes an object of `gpuloader.torch`."""

    def make():
        pytest.importorskip("torch")
        import gpuloader.torch

        return getattr(gpuloader.torch, name)(*arguments, **options)

    return make


def with_keras():
    pytest.importorskip("keras")
    from gpuloader.keras import DataLoader as KerasLoader

    return KerasLoader(ITEMS, places="cpu", batch_size=3, shuffle=True, seed=5)


def few_digits(count):
    digits = mnist.sample().train
    return mnist.DigitSet(digits.images[:count, 350:360], digits.labels[:count])


DATASETS = {
    "TensorDataset": lambda: TensorDataset(*ARRAYS),
    "ComposeDataset": lambda: gpuloader.ComposeDataset([ITEMS, range(7)]),
    "ConcatDataset": lambda: gpuloader.ConcatDataset([ITEMS, ITEMS[:2]]),
    "ChainDataset": lambda: gpuloader.ChainDataset([Counting(3), Counting(2)]),
    "MixDataset": lambda: gpuloader.MixDataset([ITEMS, ITEMS[2:]], [2, 1], at_end="repeat"),
    "Subset": lambda: gpuloader.Subset(ITEMS, [3, 1, 5]),
    "Subset of arrays": lambda: gpuloader.Subset(TensorDataset(*ARRAYS), np.array([3, 1, 5])),
    "a part of a split": lambda: gpuloader.random_split(ITEMS, [4, 3], seed=5)[1],
    "TableDataset": lambda: gpuloader.TableDataset({"x": ARRAYS[0], "t": [str(one) for one in range(7)]}),
    "TableDataset of Arrow": needing("pyarrow", lambda: gpuloader.TableDataset(arrow_table())),
    "TokenWindows": lambda: gpuloader.TokenWindows(np.arange(40, dtype=np.uint16), 8, stride=5),
    "TokenWindows of documents": lambda: gpuloader.TokenWindows(np.arange(40), 8, documents=[0, 18, 40]),
    "PackedList": lambda: gpuloader.PackedList(["a", ("b", 2), None]),
    "DigitSet": lambda: few_digits(3),
    "Mnist": lambda: mnist.Mnist(few_digits(3), few_digits(2), few_digits(1)),
    "ImageFolder": needing("PIL", lambda: gpuloader.ImageFolder("images")),
    "ImageFiles": needing("PIL", lambda: gpuloader.ImageFiles(IMAGES, [3, 4])),
    "ParquetDataset": needing(
        "pyarrow", lambda: gpuloader.ParquetDataset(TABLES, shuffle_buffer=8, **SHUFFLED)
    ),
    "TarDataset": lambda: gpuloader.TarDataset(["0.tar", "1.tar"], **SHUFFLED),
    "ZarrDataset": needing("zarr", lambda: gpuloader.ZarrDataset("arrays.zarr")),
    "HDF5Dataset": needing("h5py", lambda: gpuloader.HDF5Dataset("arrays.h5")),
    "torch.TensorDataset": lambda: with_torch("TensorDataset", tensor(ARRAYS[0]), tensor(ARRAYS[1]))(),
    "torch.ConcatDataset": with_torch("ConcatDataset", [ITEMS, ITEMS[:2]]),
    "torch.Subset": with_torch("Subset", ITEMS, [3, 1, 5]),
    "torch.ChainDataset": with_torch("ChainDataset", [Counting(3), Counting(2)]),
}

SAMPLERS = {
    "SequenceSampler": lambda: gpuloader.SequenceSampler(range(7)),
    "RandomSampler": lambda: gpuloader.RandomSampler(range(7)),
    "RandomSampler with replacement": lambda: gpuloader.RandomSampler(range(7), True, 5),
    "RandomSampler with a generator": lambda: gpuloader.RandomSampler(
        range(7), generator=np.random.default_rng(5)
    ),
    "WeightedRandomSampler": lambda: gpuloader.WeightedRandomSampler([1, 2, 3, 4], 9),
    "WeightedRandomSampler without replacement": lambda: gpuloader.WeightedRandomSampler(
        [1, 2, 3, 4], 3, False
    ),
    "SubsetRandomSampler": lambda: gpuloader.SubsetRandomSampler([3, 1, 5, 6]),
    "BatchSampler": lambda: gpuloader.BatchSampler(range(7), shuffle=True, batch_size=3),
    "BatchSampler of a sampler": lambda: gpuloader.BatchSampler(
        sampler=gpuloader.RandomSampler(range(7)), batch_size=3, drop_last=True
    ),
    "BucketSampler": lambda: gpuloader.BucketSampler([5, 1, 4, 2, 9, 3, 3], 2, pool=2),
    "DistributedBatchSampler": lambda: gpuloader.DistributedBatchSampler(
        range(7), 2, 2, 1, shuffle=True, seed=5
    ),
}

LOADERS = {
    "DataLoader": load,
    "DataLoader of arrays": lambda: load(TensorDataset(*ARRAYS), cache="host", drop_last=True),
    "DataLoader of a rank": lambda: load(shard=(1, 2), num_workers=2, worker_type="thread"),
    "DataLoader with transforms": lambda: load(
        TensorDataset(*ARRAYS), transforms=[transforms.Cast("0", "float32"), transforms.OneHot("1", 7)]
    ),
    "DataLoader with a sampler": lambda: load(shuffle=False, sampler=gpuloader.RandomSampler(ITEMS)),
    "DataLoader with feeds": lambda: load(feed_list=[gpuloader.data("x", [-1]), gpuloader.data("y", [-1])]),
    "DataLoader on two places": lambda: load(places=[gpuloader.CPUPlace()] * 2, split="shards", uneven="pad"),
    "prefetch": lambda: gpuloader.prefetch([np.arange(3) + number for number in range(4)], "cpu"),
    "prefetch of a loader": lambda: gpuloader.prefetch(ITEMS, "cpu", 2, seed=5),
    "torch.DataLoader": with_torch("DataLoader", ITEMS, 3, num_workers=0),
    "keras.DataLoader": with_keras,
}

VALUES = {
    "CPUPlace": gpuloader.CPUPlace,
    "CUDAPlace": lambda: gpuloader.CUDAPlace(1),
    "CUDAPinnedPlace": gpuloader.CUDAPinnedPlace,
    "places": lambda: [gpuloader.CPUPlace(), gpuloader.CUDAPlace(0)],
    "FeedSpec": lambda: FeedSpec("x", [-1, 3, 4], "float16"),
    "FeedSpec of sequences": lambda: gpuloader.data("words", [-1, 1], "int64", lod_level=2),
    "Ragged": lambda: Ragged(np.arange(5), [np.array([0, 2, 5])]),
    "Ragged of samples": lambda: Ragged.from_samples([[1, 2], [], [3]], "int32"),
    "Picture": needing("PIL", lambda: Picture.read("images/cat/0.png")),
    "Picture, upright": needing("PIL", lambda: Picture.read("images/dog/1.png", upright=True)),
    "ImageSample": lambda: gpuloader.ImageSample(np.zeros((2, 2, 3), np.uint8), 3),
    "Cast": lambda: transforms.Cast("x", "float16", 0.5),
    "CenterCrop": lambda: transforms.CenterCrop("x", (7, 6)),
    "ColorJitter": lambda: transforms.ColorJitter("x", 0.4, (0.5, 1.5), 0.2, 0.1),
    "CutMix": lambda: transforms.CutMix("x", "y", 10, 0.5, "HWC"),
    "MixUp": lambda: transforms.MixUp("x", "y", 10, 0.4),
    "Normalize": lambda: transforms.Normalize("x", (0.4, 0.5, 0.6), 0.25, 1 / 255, crop=(8, 8), flip=True),
    "OneHot": lambda: transforms.OneHot("y", 10, "float16"),
    "Pad": lambda: transforms.Pad("x", 12, -1),
    "RandomCropFlip": lambda: transforms.RandomCropFlip("x", (7, 6), flip=False),
    "RandomErasing": lambda: transforms.RandomErasing("x", 0.9, value=3),
    "RandomFlip": lambda: transforms.RandomFlip("x", 0.4, "vertical"),
    "RandomResizedCrop": lambda: transforms.RandomResizedCrop("x", 6, (0.5, 1), filter="bicubic"),
    "Resize": lambda: transforms.Resize("x", (5, 9), "bicubic", True),
    "Compose": lambda: vision.Compose([vision.Resize(8), vision.ToTensor(), vision.Normalize(0.5, 0.5)]),
    "LoaderStats": lambda: gpuloader.LoaderStats(*range(13)),
    "LoDTensor": lambda: fluid.create_lod_tensor(np.arange(5), [[2, 3]], gpuloader.CPUPlace()),
    "SampleError": lambda: gpuloader.SampleError("it broke", batch=3, index=4, field="x", worker=1),
    "FeedError": lambda: gpuloader.FeedError("it broke", index=4, field="x"),
    "WorkerError": lambda: gpuloader.WorkerError("it died", pid=5, signal=9, indices=(1, 2)),
    "WorkerTimeout": lambda: gpuloader.WorkerTimeout("it hangs", pid=5, indices=(1, 2)),
    "SourceError": lambda: gpuloader.SourceError("it is gone", url="http://host/a.tar", attempts=5),
    "DataFileError": lambda: gpuloader.DataFileError("bad", file="a.parquet", row_group=2, column="label"),
    "PictureError": lambda: gpuloader.PictureError("bad", file="a.jpg", index=3),
    "EOFException": lambda: gpuloader.EOFException("the end"),
    "PlaceError": lambda: gpuloader.PlaceError("no GPU"),
}

ALL = DATASETS | SAMPLERS | LOADERS | VALUES


def arrow_table():
    import pyarrow as pa

    return pa.table({"x": [1.0, 2.0, 3.0], "t": ["a", "b", None]})


def tensor(array):
    return pytest.importorskip("torch").from_numpy(array)


def behave(name, value):
    """Return what can be seen of an object, as plain values."""
    seen = {"type": type(value).__name__, "repr": describe(value)}
    if name in LOADERS:
        return seen | {"epochs": [plain(list(value)) for _ in range(2)]}
    if name in SAMPLERS:
        return seen | behave_as_sampler(value)
    if name in DATASETS:
        return seen | behave_as_dataset(value)
    if isinstance(value, BaseException):
        return seen | {"text": str(value), "parts": plain(vars(value))}
    if isinstance(value, fluid.LoDTensor):
        return seen | {"value": plain(np.array(value)), "lod": plain(value.lod())}
    if isinstance(value, Ragged | Picture | gpuloader.ImageSample):
        return seen | {"value": plain(value)}
    return seen


def describe(value):
    """Return an object's `repr`, without its address, and without the module of its class."""
    if isinstance(value, mnist.Mnist | mnist.DigitSet | Ragged | gpuloader.ImageSample):
        return ""  # the arrays' digits, which each release of NumPy writes in its own way
    return re.sub(r"<gpuloader[\w.]*\.(\w+ object) at 0x\w+>", r"<\1>", repr(value))


def behave_as_sampler(sampler):
    np.random.seed(3)
    option = "batch_sampler" if hasattr(sampler, "batch_size") else "sampler"
    batches = DataLoader(range(7), places="cpu", seed=5, **{option: sampler})
    return {"length": len(sampler), "epochs": [[batch.tolist() for batch in batches] for _ in range(2)]}


def behave_as_dataset(dataset):
    if isinstance(dataset, mnist.Mnist):
        return {"parts": [behave_as_dataset(part) for part in (dataset.train, dataset.valid, dataset.test)]}
    if isinstance(dataset, mnist.DigitSet):
        return {"images": plain(dataset.images), "labels": plain(dataset.labels)}
    seen = {"samples": [plain(one) for one in itertools.islice(iter(dataset), 20)]}
    if isinstance(dataset, gpuloader.IterableDataset):
        return seen
    try:
        length = len(dataset)
    except TypeError:
        return seen
    return seen | {"length": length, "last": plain(dataset[length - 1])}


class Naming(pickle.Unpickler):
    """Notes the classes and functions of the package that a pickle names."""

    def __init__(self, pickled):
        super().__init__(io.BytesIO(pickled))
        self.names = set()

    def find_class(self, module, name):
        if module.startswith("gpuloader"):
            self.names.add(f"{module}.{name}")
        return super().find_class(module, name)


def observe(name):
    pickled = pickle.dumps(ALL[name](), protocol=4)
    naming = Naming(pickled)
    return {
        "behavior": behave(name, naming.load()),
        "names": sorted(naming.names),
        "pickle": base64.b64encode(pickled).decode(),
    }


@pytest.fixture(scope="module", autouse=True)
def files():
    with recording.in_folder_of_files():
        yield


@pytest.fixture(scope="module")
def recorded():
    return recording.read("pickles")


@pytest.mark.parametrize("name", ALL)
def test_a_recorded_pickle_is_loaded(name, recorded):
    made = ALL[name]()  # or skips, where a library is missing
    wanted = recorded[name]["behavior"]
    assert behave(name, pickle.loads(base64.b64decode(recorded[name]["pickle"]))) == wanted
    assert behave(name, made) == wanted


def test_the_samplers_of_a_loader_are_loaded_from_where_they_were_defined_before():
    # A loader's own sampler has such a `set_epoch`, and is pickled together with it.
    for module in ("loader.resuming", "api.upcoming"):
        found = pickle.loads(f"cgpuloader.{module}\nEpochOf\n(tR.".encode())
        assert found(3) is None


def write():
    os.environ.setdefault("KERAS_BACKEND", "torch")  # as in conftest.py
    with recording.in_folder_of_files():
        recording.update("pickles", ALL, observe)


if __name__ == "__main__":
    write()
