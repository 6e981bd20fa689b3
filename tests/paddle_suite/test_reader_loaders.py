"""Loaders over readers that are looped over: DataLoader.from_generator and PyReader.

The cases of Paddle's test_generator_dataloader.py, test_decoupled_py_reader*.py, test_py_reader_*.py,
test_dataloader_early_reset.py, test_dataloader_*keep_order.py and test_imperative_data_loader_*.py.
"""

import numpy as np
import pytest

from tests.paddle_suite.libraries import array, rows

SIZE, COUNT = 16, 10
IMAGES = np.random.default_rng(1).random((SIZE * COUNT, 784))
LABELS = np.random.default_rng(2).integers(0, 10, SIZE * COUNT)


def samples():
    """Yield float64 images and plain integers, which the feeds convert."""
    yield from zip(IMAGES, LABELS.tolist(), strict=True)


def feeds(lib):
    return [lib.data("image", [-1, 784], "float32"), lib.data("label", [-1, 1], "int64")]


def numbered(count, shape=(3, 4, 5)):
    """Return a reader of batches: batch n is full of n."""
    return lambda: ([np.full(shape, number, "float32")] for number in range(count))


@pytest.fixture(params=["DataLoader", "PyReader"])
def make(request, lib):
    """Make a loader under its new or its old name."""
    io = lib.fluid.io
    return io.DataLoader.from_generator if request.param == "DataLoader" else io.PyReader


def set_source(loader, kind, reader, *arguments, **options):
    """Call a setter under its new or its old name."""
    setter = getattr(loader, f"set_{kind}_generator", None) or getattr(loader, f"decorate_{kind}_generator")
    setter(reader, *arguments, **options)
    return loader


by_double_buffer = pytest.mark.parametrize("double_buffer", [True, False])


class TestWithFeeds:
    @by_double_buffer
    def test_epochs_of_sample_lists(self, lib, make, double_buffer):
        with lib.static():
            loader = make(feed_list=feeds(lib), capacity=4, iterable=True, use_double_buffer=double_buffer)
            reader = lib.batch(samples, batch_size=SIZE)
            set_source(loader, "sample_list", reader, places=lib.fluid.cpu_places(1))
            assert loader.iterable
            for _ in range(5):
                steps = list(loader())
                assert [len(step) for step in steps] == [1] * COUNT
                for number, [batch] in enumerate(steps):
                    chosen = slice(number * SIZE, (number + 1) * SIZE)
                    assert sorted(batch) == ["image", "label"]
                    assert (array(batch["image"]) == IMAGES[chosen].astype("float32")).all()
                    assert rows(batch["label"]) == LABELS[chosen, None].tolist()

    @pytest.mark.parametrize("count", [165, 160, 200, 159])
    @pytest.mark.parametrize("kind", ["sample", "sample_list"])
    @pytest.mark.parametrize("drop_last", [False, True])
    def test_samples_and_lists_of_them_make_the_same_batches(self, lib, make, count, kind, drop_last):
        numbers = np.random.default_rng(count).random((count, 784)).astype("float32")
        reader = lib.reader.cache(lambda: ((row, np.array([number])) for number, row in enumerate(numbers)))
        batched = lib.batch(reader, 32, drop_last)
        with lib.static():
            loader = make(feed_list=feeds(lib), capacity=16, iterable=True, use_double_buffer=False)
            source = (reader, 32, drop_last) if kind == "sample" else (batched,)
            set_source(loader, kind, *source, places=lib.fluid.cpu_places())
            for _ in range(2):
                steps = list(loader())
                assert len(steps) == (count // 32 if drop_last else -(-count // 32))
                for [batch], expected in zip(steps, batched(), strict=True):
                    assert rows(batch["label"]) == [label.tolist() for _, label in expected]
                    assert (array(batch["image"]) == [image for image, _ in expected]).all()

    @pytest.mark.parametrize("leave_at", [100, 2, 0])
    @pytest.mark.parametrize("ordered", [True, False])
    def test_order(self, lib, make, leave_at, ordered):
        """gpuloader keeps the order even where Paddle was told that it need not."""
        if lib.name == "paddle":
            lib.fluid.reader.keep_data_loader_order(ordered)
        try:
            with lib.static():
                loader = make(feed_list=[lib.data("x", [3, 4, 5])], capacity=16, iterable=True)
                set_source(loader, "batch", numbered(40), places=lib.fluid.cpu_places(1))
                for _ in range(3):
                    seen = []
                    for [batch] in loader():
                        if len(seen) >= leave_at:
                            break
                        seen.append(float(array(batch["x"])[0, 0, 0]))
                    expected = list(range(min(leave_at, 40)))
                    if ordered or lib.differs("order-is-kept"):
                        assert seen == expected
                    assert len(set(seen)) == len(expected)
                if lib.name == "paddle":  # which leaves a thread behind when a loop is left
                    getattr(loader, "_loader", loader)._reset()
        finally:
            if lib.name == "paddle":
                lib.fluid.reader.keep_data_loader_order(True)


class TestWithoutFeeds:
    """Paddle's dynamic mode: a step is a flat list."""

    def reader(self):
        return ((np.full(784, number, "float32"), np.array([number])) for number in range(32))

    def whole(self):
        for number in range(0, 32, 8):
            yield np.full((8, 784), number, "float32"), np.full((8, 1), number)

    @pytest.mark.filterwarnings("ignore:this loader was made with iterable=False")
    @pytest.mark.parametrize("kind", ["sample", "sample_list", "batch"])
    @pytest.mark.parametrize("options", [{}, {"return_list": True}, {"iterable": False}], ids=str)
    def test_sources(self, lib, make, kind, options):
        """Without places, too; and a loader that is not iterable can be looped over all the same."""
        batched = lib.batch(self.reader, 8)
        readers = {"sample": (self.reader, 8), "sample_list": (batched,), "batch": (self.whole,)}
        with lib.dynamic():
            loader = make(capacity=5, **options)
            assert loader.iterable
            set_source(loader, kind, *readers[kind], **({"places": lib.cpu} if options else {}))
            for _ in range(2):
                steps = list(loader())
                shapes = [(array(image).shape, array(label).shape) for image, label in steps]
                assert shapes == [((8, 784), (8, 1))] * 4
                assert [rows(label)[0] for _, label in steps] == [[0], [8], [16], [24]]

    def test_next_of_a_call(self, lib):
        with lib.dynamic():
            loader = lib.fluid.io.DataLoader.from_generator(capacity=5)
            loader.set_batch_generator(numbered(3, (2, 1)), places=lib.cpu)
            if lib.differs("next-of-a-call"):
                assert [float(array(next(loader())[0])[0, 0]) for _ in range(2)] == [0, 0]
            else:
                with pytest.raises(AttributeError):
                    next(loader())
