"""Loaders on GPUs end to end, without a GPU: the kernels are built for the CPU and run on the fake runtime.

tests/devices does the same with twins. Here the .cu files and their launchers run when a stream's turn
comes. That tests their arguments, their order on the copy stream, and their results.
"""

import contextlib
import threading
from collections import Counter

import numpy as np
import pytest

import gpuloader.transforms as t
from gpuloader import DataLoader, LoaderError, TensorDataset, cuda_places, prefetch
from gpuloader.kernels import launching, shuffle
from gpuloader.order.randomness import SORTED_AT_MOST
from gpuloader.transforms.program import Plain
from tests.fakes import nothing_left_behind
from tests.fakes_cuda import FakeRuntime, make_cupy, use_cupy
from tests.kernels import shim
from tests.sample_sets import Made

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.skipif(shim.SANITIZED, reason="the kernels alone are sanitized")

COUNT = 26
PICTURES = np.random.default_rng(0).integers(0, 256, (COUNT, 9, 8, 3), np.uint8)
LABELS = np.random.default_rng(1).integers(0, 5, COUNT)


@pytest.fixture
def runtime(kernels, monkeypatch):
    fake = FakeRuntime(devices=2)
    kernels.shape = None

    def load(name, entry=None):
        run = kernels.load(name, entry)

        def launch(grid, block, arguments, *, stream):
            fake.check("launch")
            fake.launch(lambda: run(grid, block, arguments), stream.ptr)

        return launch

    def sort(grid, block, arguments, *, stream):
        fake.launch(lambda: np.ndarray.sort(shim.read(arguments[0])), stream.ptr)

    monkeypatch.setattr(launching, "load_kernel", load)
    monkeypatch.setattr(launching, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(launching, "on_stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(shuffle, "sort", sort)
    with use_cupy(monkeypatch, make_cupy(cupy, fake)):
        yield fake


def make_words(index):
    return np.arange(index % 4, dtype=np.int16) + index, PICTURES[index].transpose(2, 0, 1) / np.float32(7)


ROWS = TensorDataset(PICTURES, LABELS)
CASES = {
    "everything": (
        ROWS,
        [
            t.RandomCropFlip("0", (6, 5)),
            t.Normalize("0", (0.4, 0.5, 0.6), 0.25, scale=1 / 255, dtype="float16"),
            t.OneHot("1", 5),
        ],
    ),
    "windows alone": (
        ROWS,
        [t.RandomCropFlip("0", (6, 5)), t.Cast("0", "float32", 1 / 255), t.OneHot("1", 4, "uint8")],
    ),
    "mixed": (
        ROWS,
        [
            t.RandomErasing("0", value=[9, 8, 7], layout="HWC"),
            t.CutMix("0", "1", 5, layout="HWC"),
            t.Normalize("0", 0.5, 0.25, scale=1 / 255, dtype="float16"),
            t.MixUp("0", "1", 5),
        ],
    ),
    "colors": (
        list(zip(PICTURES, LABELS, strict=True)),
        [
            t.RandomResizedCrop("0", (6, 5)),
            t.ColorJitter("0", 0.3, 0.3, 0.3, 0.1),
            t.RandomFlip("0"),
            t.ColorJitter("0", contrast=0.5),
            t.Normalize("0", 0.5, 0.25, scale=1 / 255, dtype="float16"),
        ],
    ),
    "nothing": (ROWS, []),
    "words": (
        Made(make_words, COUNT),
        [
            t.Pad("0", 4, -1),
            t.RandomCropFlip("1", (4, 8), layout="CHW"),
            t.Normalize("1", 1, 2, layout="CHW", to="HWC"),
        ],
    ),
}


def collect(loader, runtime=None, epochs=1):
    """Return the batches of some epochs; the shards of a step follow one another."""
    found = []
    for _ in range(epochs):
        for step in loader:
            if runtime is not None:
                runtime.finish()
            for part in step if isinstance(step[0], list) else [step]:
                found.append([np.array(one if runtime is None else shim.read(one)) for one in part])
    return found


def load(dataset, places="gpu:0", **options):
    return DataLoader(dataset, places=places, **{"batch_size": 6, "shuffle": True, "seed": 5, **options})


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for batch, other in zip(found, wanted, strict=True):
        for one, two in zip(batch, other, strict=True):
            shim.same_bits(one, two)


@pytest.mark.parametrize(
    ("case", "cache"),
    [
        (case, cache)
        for case in CASES
        for cache in (None, "host", "device")
        if case not in ("words", "colors") or cache is None
    ],
)
def test_batches_are_those_of_a_host(runtime, kernels, case, cache):
    if case == "colors":
        pytest.importorskip("PIL", reason="Pillow is not installed")
        kernels.shape = (1, 1), (8,)  # threads that wait at barriers take long here
    dataset, steps = CASES[case]
    options = {"transforms": steps, "ragged": ["0"] if case == "words" else []}
    wanted = collect(load(dataset, "cpu", **options), None, 3)
    for places in ("gpu:0", cuda_places()):
        assert_same(collect(load(dataset, places, cache=cache, **options), runtime, 3), wanted)


class Doubled(Plain):
    """A transform of a user, which launches a kernel of its own in each batch."""

    field = "1"

    def __init__(self, runtime):
        self.runtime = runtime

    def bind(self, inputs):
        self.outputs = tuple(inputs)
        return self

    def on_host(self, inputs, outputs):
        np.multiply(inputs[0], 2, out=outputs[0])

    def on_device(self, inputs, outputs, stream):
        given, out = shim.read(inputs[0]), shim.read(outputs[0])
        self.runtime.launch(lambda: np.multiply(given, 2, out=out), stream.ptr)


@pytest.mark.parametrize("cache", [None, "device"])
class TestLaunchesAreRepeated:
    def test_a_slot_makes_its_arguments_once(self, runtime, monkeypatch, cache):
        """After every slot has had a batch, nothing is checked or made: kernels are launched."""
        dataset, steps = CASES["everything"]
        loader = load(dataset, transforms=steps, cache=cache, drop_last=True)
        for _ in range(2):
            list(loader)
        made, find = [], launching.load_kernel
        monkeypatch.setattr(launching, "load_kernel", lambda *name: (made.append(name[0]), find(*name))[1])
        before = runtime.calls["launch"]
        for _ in loader:
            pass
        order = ["shuffle"] * 2 if cache else []  # computed anew for each epoch
        assert made == order
        launches = 2 + bool(cache)  # normalize and one_hot, and one gather for both fields
        assert runtime.calls["launch"] - before == launches * (COUNT // 6) + len(order)

    def test_so_are_those_of_mixed_pictures(self, runtime, monkeypatch, cache):
        dataset, steps = CASES["mixed"]
        loader = load(dataset, batch_size=13, shuffle=False, transforms=steps, cache=cache)
        for _ in range(2):
            list(loader)
        made = []
        monkeypatch.setattr(launching, "load_kernel", lambda name, entry=None: made.append(name))
        before = runtime.calls["launch"]
        list(loader)
        assert not made
        assert runtime.calls["launch"] - before == 2 * (6 + bool(cache))

    def test_those_of_a_users_transform_are_not(self, runtime, cache):
        found = collect(load(ROWS, transforms=[Doubled(runtime)], cache=cache), runtime, 3)
        assert_same(found, collect(load(ROWS, "cpu", transforms=[Doubled(None)]), None, 3))

    def test_one_that_fails_is_made_again(self, runtime, monkeypatch, cache):
        dataset, steps = CASES["everything"]
        loader, find = load(dataset, transforms=steps, cache=cache), launching.load_kernel

        def fail(name, entry=None):
            if name == "one_hot":
                raise RuntimeError("no such kernel")
            return find(name, entry)

        with monkeypatch.context() as patch:
            patch.setattr(launching, "load_kernel", fail)
            with pytest.raises(RuntimeError, match="no such kernel"):
                list(loader)
        loader.set_epoch(0)
        assert_same(collect(loader, runtime), collect(load(dataset, "cpu", transforms=steps)))


class Compiler:
    """Says when a kernel is asked for, and in which threads.

    It holds up the compiling thread until told to go on, and launches until that has asked for some kernels.
    """

    def __init__(self, monkeypatch, kernels=2):
        self.begun, self.go_on, self.asked = (threading.Event() for _ in range(3))
        self.wanted = []
        find = launching.load_kernel

        def wait_and_load(name, entry=None):
            self.wanted.append((threading.current_thread().name, name))
            if threading.current_thread().name == "gpuloader-compiler":
                self.begun.set()
                assert self.go_on.wait(60)
                if sum(thread == "gpuloader-compiler" for thread, _ in self.wanted) >= kernels:
                    self.asked.set()
            else:
                assert self.asked.wait(60)
            return find(name, entry)

        monkeypatch.setattr(launching, "load_kernel", wait_and_load)

    def names(self, ahead):
        return {name for thread, name in self.wanted if (thread == "gpuloader-compiler") == ahead}


@pytest.mark.parametrize("workers", [0, 2])
class TestCompilingAhead:
    steps = CASES["everything"][1]

    def load(self, before, workers):
        """Return a loader that calls a function before it reads a sample."""
        dataset = Made(lambda index: (before(index), ROWS[index])[1], COUNT)
        options = {"num_workers": workers, "worker_type": "thread", "shuffle": False}
        return load(dataset, transforms=self.steps, **options)

    def test_begins_with_the_first_sample_and_holds_up_none(self, runtime, monkeypatch, workers):
        """The first batch waits for the compiler to begin, and the compiler for the first batch's samples."""
        compiler, read = Compiler(monkeypatch), []

        def before(index):
            if index:
                assert compiler.begun.wait(60)
            read.append(index)
            if len(read) == 6:
                compiler.go_on.set()

        found = collect(self.load(before, workers), runtime)
        assert compiler.names(ahead=True) == compiler.names(ahead=False) == {"normalize", "one_hot"}
        assert_same(found, collect(load(ROWS, "cpu", shuffle=False, transforms=self.steps)))

    def test_ends_with_the_first_step_and_does_not_begin_again(self, runtime, monkeypatch, workers):
        compiler = Compiler(monkeypatch)
        compiler.go_on.set()
        loader = self.load(lambda index: None, workers)
        for _ in range(2):
            for _ in loader:
                assert "gpuloader-compiler" not in [one.name for one in threading.enumerate()]
        assert len([name for thread, name in compiler.wanted if thread == "gpuloader-compiler"]) == 2

    def test_ends_with_a_loop_that_fails_at_once(self, runtime, monkeypatch, workers):
        compiler = Compiler(monkeypatch)

        def before(index):
            if index:
                assert compiler.begun.wait(60)
                threading.Timer(0.05, compiler.go_on.set).start()
                raise OSError("unplugged")

        with nothing_left_behind():
            with pytest.raises(Exception, match="unplugged"):
                list(self.load(before, workers))
            assert "gpuloader-compiler" not in [one.name for one in threading.enumerate()]
            assert len(compiler.wanted) == 1  # nothing else was compiled

    def test_an_error_is_raised_where_the_kernel_is_launched(self, runtime, monkeypatch, workers):
        compiler, find = Compiler(monkeypatch, kernels=1), launching.load_kernel
        compiler.go_on.set()

        def fail(name, entry=None):
            find(name, entry)
            raise cupy.cuda.compiler.CompileException("no such type", "source", name, (), "nvrtc")

        monkeypatch.setattr(launching, "load_kernel", fail)
        with pytest.raises(LoaderError, match="no such type"):
            list(self.load(lambda index: index and compiler.begun.wait(60), workers))
        assert compiler.names(ahead=True)


def test_compiling_ahead_around_another_loader(runtime, monkeypatch):
    compiler = Compiler(monkeypatch)
    compiler.go_on.set()
    batches = [(PICTURES[start : start + 6], LABELS[start : start + 6]) for start in (0, 6, 12)]
    steps = [t.Normalize("0", 0.5, 0.25), t.OneHot("1", 5)]
    with nothing_left_behind():
        found = collect(map(list, prefetch(batches, places="gpu:0", transforms=steps)), runtime)
        assert "gpuloader-compiler" not in [one.name for one in threading.enumerate()]
    assert_same(found, list(prefetch(batches, places="cpu", transforms=steps)))
    assert compiler.names(ahead=True)


@pytest.mark.parametrize("split", ["batches", "shards"])
@pytest.mark.parametrize("count", [100, SORTED_AT_MOST + 3])
def test_a_devices_permutation_is_the_hosts(runtime, kernels, count, split):
    rows = TensorDataset(np.arange(count, dtype=np.int32))
    options = {"batch_size": 10_001, "shuffle": True, "seed": 3, "split": split}
    if split == "shards":
        options["uneven"] = "pad"
    kernels.launches.clear()
    loader = DataLoader(rows, places=cuda_places(), cache="device", **options)
    plain = DataLoader(rows, places=["cpu"] * 2, **options)
    for step, wanted in zip(loader, plain, strict=True):
        runtime.finish()
        for part, other in zip(step, wanted, strict=True):
            for field, expected in zip(part, other, strict=True):
                np.testing.assert_array_equal(shim.read(field), expected)
    counts = Counter(entry.partition("<")[0] for entry, *_ in kernels.launches)
    once = ["permute_positions"] if count > SORTED_AT_MOST else ["hash_numbers", "take_numbers"]
    gathers = 2 * len(plain) if split == "shards" else -(-count // 10_001)
    assert counts == {**dict.fromkeys(once, 2), "gather": gathers}
