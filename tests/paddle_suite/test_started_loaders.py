"""Loaders over readers that are started and reset: ``iterable=False``.

The cases of Paddle's test_reader_reset.py, and those of its loader tests where a program reads the batches.
Paddle 3.3.1 cannot create such a loader: its ``set_dtypes`` refuses the dtypes of its own feeds.
"""

import itertools

import numpy as np
import pytest

from tests.paddle_suite.libraries import rows

SIZE, COUNT = 5, 20


@pytest.fixture(autouse=True)
def created(lib):
    if lib.version >= (3,):
        pytest.skip("Paddle 3 cannot create a loader that is not iterable")


@pytest.fixture(params=["DataLoader", "PyReader"])
def make(request, lib):
    kinds = {"DataLoader": lib.fluid.io.DataLoader.from_generator, "PyReader": lib.fluid.io.PyReader}
    return kinds[request.param]


@pytest.fixture
def static(lib):
    with lib.static():
        yield


def batches(first, last):
    return lambda: ([np.full((2, 1), number, "float32")] for number in range(first, last))


def set_batches(loader, reader, places=None):
    setter = getattr(loader, "set_batch_generator", None) or loader.decorate_batch_generator
    setter(reader, places)


@pytest.fixture
def x(lib, static):
    return lib.data("x", [None, 1])


@pytest.fixture
def load(make, x):
    """Return a function that makes a loader of batches, or of nothing yet."""

    def load(reader=None, places=None):
        loader = make(feed_list=[x], capacity=4, iterable=False)
        if reader:
            set_batches(loader, reader, places)
        return loader

    return load


@pytest.fixture
def take(lib, x):
    """Return a function for the first numbers of the next batches, or of all until the end of the epoch."""

    def take(loader, most=None):
        seen = []
        try:
            while len(seen) != most:
                seen.append(rows(lib.run(loader, [x])[0])[0][0])
        except lib.EOFException:
            pass
        return seen

    return take


@pytest.mark.parametrize("double_buffer", [False, True])
def test_many_epochs(lib, static, make, double_buffer):
    image, label = lib.data("image", [-1, 3], "float32"), lib.data("label", [-1, 1], "int64")
    loader = make(feed_list=[image, label], capacity=16, iterable=False, use_double_buffer=double_buffer)
    samples = lib.batch(lambda: ((np.ones(3) * n, n) for n in range(SIZE * COUNT)), batch_size=SIZE)
    setter = getattr(loader, "set_sample_list_generator", None) or loader.decorate_sample_list_generator
    setter(samples)
    assert not loader.iterable
    for _ in range(20):
        loader.start()
        for number in itertools.count():
            try:
                images, labels = lib.run(loader, [image, label])
            except lib.EOFException:
                break
            expected = list(range(number * SIZE, (number + 1) * SIZE))
            assert rows(labels) == [[label] for label in expected]
            assert rows(images) == [[label] * 3 for label in expected]
        assert number == COUNT
        loader.reset()


@pytest.mark.parametrize("leave_at", [100, 2, 0])
def test_resetting_in_the_middle(load, take, leave_at):
    loader = load(batches(0, 40))
    for _ in range(3):
        loader.start()
        seen = take(loader, leave_at)
        loader.reset()
        assert seen == list(range(min(leave_at, 40)))


def test_resetting_an_endless_reader(load, take):
    loader = load(lambda: ((np.full((8, 1), n, "float32"),) for n in itertools.count()))
    for _ in range(5):
        loader.start()
        assert take(loader, 20) == list(range(20))
        loader.reset()


@pytest.mark.parametrize("count", [165, 160, 200, 159])
@pytest.mark.parametrize("kind", ["sample", "sample_list"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_samples_and_lists_of_them(lib, static, make, count, kind, drop_last):
    x = lib.data("x", [-1, 1], "int64")
    loader = make(feed_list=[x], capacity=16, iterable=False, use_double_buffer=False)
    reader = lambda: ((number,) for number in range(count))  # noqa: E731
    setter = getattr(loader, f"set_{kind}_generator", None) or getattr(loader, f"decorate_{kind}_generator")
    if kind == "sample":
        setter(reader, 32, drop_last)
    else:
        setter(lib.batch(reader, 32, drop_last))
    loader.start()
    seen = []
    with pytest.raises(lib.EOFException):
        while True:
            seen.append([row[0] for row in rows(lib.run(loader, [x])[0])])
    loader.reset()
    whole = [list(range(first, min(first + 32, count))) for first in range(0, count, 32)]
    assert seen == [batch for batch in whole if len(batch) == 32 or not drop_last]


@pytest.mark.filterwarnings("ignore:a loader made with iterable=False delivers")
@pytest.mark.parametrize("places", [1, 2, 3])
def test_every_batch_arrives_whatever_the_places(lib, load, take, places):
    loader = load(batches(0, 5), lib.fluid.cpu_places(places))
    loader.start()
    assert take(loader) == [0, 1, 2, 3, 4]
    loader.reset()


@pytest.mark.filterwarnings(r"ignore:start\(\) without reset")
def test_starting_after_the_end_without_reset(load, take):
    loader = load(batches(0, 3))
    loader.start()
    assert take(loader) == [0, 1, 2]
    loader.start()
    assert take(loader) == []
    loader.reset()
    loader.start()
    assert take(loader) == [0, 1, 2]
    loader.reset()


@pytest.mark.filterwarnings("ignore:the source changed")
def test_a_setter_while_started(load, take):
    loader = load(batches(0, 5))
    loader.start()
    first = take(loader, 1)
    set_batches(loader, batches(10, 13))
    assert first + take(loader) == [0, 1, 2, 3, 4]
    loader.reset()
    loader.start()
    assert take(loader) == [10, 11, 12]
    loader.reset()


def test_it_cannot_be_looped_over(load):
    with pytest.raises(AssertionError, match="iterable"):
        iter(load(batches(0, 3)))


def test_resetting_what_has_not_started(load):
    loader = load(batches(0, 3))
    loader.reset()
    loader.start()
    loader.reset()


MISUSE = {
    "call start": lambda lib, loader, x: lib.run(loader, [x]),
    "twice": lambda lib, loader, x: (loader.start(), loader.start()),
    "no source": lambda lib, loader, x: loader.start(),
}


@pytest.mark.parametrize("message", MISUSE)
def test_misuse(lib, only_ours, load, x, message):
    assert lib.differs("nothing-hangs")
    loader = load(None if message == "no source" else batches(0, 3))
    with pytest.raises(AssertionError, match=message):
        MISUSE[message](lib, loader, x)
    if message == "twice":
        loader.reset()
