"""default_collate, default_convert, and what a loader makes of samples by itself."""

import collections
import sys

import numpy as np
import pytest
import torch

from tests.alike import same
from tests.sample_sets import Pair
from tests.torch_suite.datasets import Items

WORKERS = pytest.mark.parametrize("workers", [0, 1])


class Listed(list):
    """A list of the user's own class."""


class Keyed(dict):
    """A dict of the user's own class."""


class OneTensor(torch.utils.data.Dataset):
    """A dataset that returns one tensor for several indices."""

    def __len__(self):
        return 2

    def __getitems__(self, indices):
        return torch.arange(4).reshape(2, 2)[indices]


COLLATED = {
    "floats": ([1.0, 2.5], torch.tensor([1.0, 2.5], dtype=torch.float64)),
    "an integer first": ([1, 2.5], torch.tensor([1, 2.5])),
    "a bool first": ([True, 2], torch.tensor([1, 2])),
    "text": (["a", "b", "c"], ["a", "b", "c"]),
    "bytes": ([b"a", b"b"], [b"a", b"b"]),
    "dict": ([Keyed(a=1, b=2), Keyed(a=3, b=4)], Keyed(a=torch.tensor([1, 3]), b=torch.tensor([2, 4]))),
    "list": ([Listed([1, 2]), Listed([4, 5])], Listed([torch.tensor([1, 4]), torch.tensor([2, 5])])),
    "tuple": ([(1, "a"), (2, "b")], [torch.tensor([1, 2]), ("a", "b")]),
    "named tuple": ([Pair(1, "a"), Pair(3, "b")], Pair(torch.tensor([1, 3]), ("a", "b"))),
    "defaultdict": (
        [collections.defaultdict(int, a=1), collections.defaultdict(int, a=2)],
        collections.defaultdict(int, a=torch.tensor([1, 2])),
    ),
    "ordered": (
        [collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=3, a=4)],
        collections.OrderedDict(b=torch.tensor([1, 3]), a=torch.tensor([2, 4])),
    ),
}


@WORKERS
def test_containers_keep_their_class(lib, workers):
    """Except for tuples, which become lists."""
    parts, end = [], 0
    for samples, expected in COLLATED.values():
        assert same(lib.default_collate(samples), expected)
        parts.append(range(end, end := end + len(samples)))
    every = [sample for samples, _ in COLLATED.values() for sample in samples]
    batches = lib.DataLoader(every, batch_sampler=parts, num_workers=workers)
    for name, batch in zip(COLLATED, batches, strict=True):
        assert same(batch, COLLATED[name][1]), name


@pytest.mark.parametrize("kind", [range, collections.deque, bytearray], ids=lambda kind: kind.__name__)
def test_other_sequences(lib, kind):
    samples = [range(2), range(1, 3)] if kind is range else [kind([0, 1]), kind([1, 2])]
    [batch] = lib.DataLoader(samples, 2)
    assert same(list(batch), [torch.tensor([0, 1]), torch.tensor([1, 2])])
    [nested] = lib.DataLoader([{"x": one} for one in samples], 2)
    assert same(list(nested["x"]), list(batch))
    [single] = lib.DataLoader(samples[:1], batch_size=None)
    assert list(single) == [0, 1]


CONVERTED = {
    "dict": (Keyed(a=1, b=2), Keyed(a=1, b=2)),
    "list": (Listed([1, 2, 3]), Listed([1, 2, 3])),
    "dict of arrays": ({"a": np.arange(2)}, {"a": torch.tensor([0, 1])}),
    "tuple": ((np.zeros(1), "a"), [torch.zeros(1, dtype=torch.float64), "a"]),
    "named tuple": (Pair(np.zeros(1), 2), Pair(torch.zeros(1, dtype=torch.float64), 2)),
    "number": (np.float32(2.5), torch.tensor(2.5)),
    "array of text": (np.array(["a"]), np.array(["a"])),
}


@WORKERS
def test_single_samples_are_converted(lib, workers):
    samples = [sample for sample, _ in CONVERTED.values()]
    found = lib.DataLoader(samples, batch_size=None, num_workers=workers)
    for name, one in zip(CONVERTED, found, strict=True):
        sample, expected = CONVERTED[name]
        assert same(lib.default_convert(sample), expected), name
        assert same(one, expected), name


REFUSED = {
    "a longer list": ([["X"], ["X", "X"]], RuntimeError, None),
    "a shorter list": ([["X", "X"], ["X"]], RuntimeError, None),
    "another shape": ([torch.zeros(2), torch.zeros(3)], RuntimeError, None),
    "a structured array": ([np.zeros(2, [("x", "f4")])] * 2, TypeError, None),
    "a structured number": ([np.zeros(1, [("x", "f4")])[0]] * 2, TypeError, None),
    "an array of long doubles": ([np.ones(2, np.longdouble)] * 2, TypeError, "longdouble"),
    "a long double": ([np.longdouble(1)] * 2, TypeError, "longdouble"),
    "integers beyond 64 bits": ([2**63, 2**63], ValueError, "Overflow"),
    "a second one beyond": ([1, 2**63], ValueError, "Overflow"),
    "one in a dict": ([{"a": 2**64}, {"a": 0}], ValueError, "Overflow"),
    "one in a list": ([[-(2**63) - 1], [0]], ValueError, "Overflow"),
}


@pytest.mark.parametrize("name", REFUSED)
@WORKERS
def test_a_loader_refuses_samples_that_do_not_match_or_fit(lib, name, workers):
    samples, error, message = REFUSED[name]
    with pytest.raises(error, match=message) if error is RuntimeError else lib.raises(error, message):
        list(lib.DataLoader(samples, 2, num_workers=workers))


@pytest.mark.parametrize("last", [[6.5, 7], [torch.zeros(2), torch.zeros(3)], [{"a": 1}, {"b": 2}]], ids=str)
@WORKERS
def test_a_last_batch_that_is_dropped(lib, last, workers):
    """Its items do not even fit together."""
    loader = lib.DataLoader(Items([1, 2, 3, *last]), 3, drop_last=True, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[1, 2, 3]]


@pytest.mark.parametrize("value", [None, object(), {1, 2}], ids=["None", "object", "set"])
def test_objects_that_are_no_numbers(lib, value):
    loader = lib.DataLoader([value, value], 2)
    if lib.differs("objects-are-collected"):
        assert list(loader) == [[value, value]]
    else:
        with pytest.raises(TypeError, match="default_collate"):
            list(loader)


DELIVERED = {
    "byte order": (lambda: [np.ones(2, ">f4" if sys.byteorder == "little" else "<f4")], [[1, 1]]),
    "negative strides": (lambda: [np.arange(3)[::-1]], [[2, 1, 0]]),
    "uint64": (lambda: [np.uint64(3)], [3]),
    "complex": (lambda: [1j], [1j]),
    "a number after a tensor": (lambda: [torch.tensor(1), 2], [1, 2]),
    "one tensor": (OneTensor, [[0, 1], [2, 3]]),
}


@pytest.mark.parametrize("name", DELIVERED)
def test_what_pytorch_refuses(lib, name):
    make, expected = DELIVERED[name]
    dataset = make()
    loader = lib.DataLoader(dataset, len(dataset))
    if lib.differs("more-is-delivered"):
        [batch] = loader
        assert batch.tolist() == expected
    else:
        with pytest.raises((TypeError, ValueError)):
            list(loader)


def test_numbers_under_another_device(lib):
    with torch.device("meta"):
        if lib.differs("more-is-delivered"):
            assert [batch.tolist() for batch in lib.DataLoader([1, 2, 3], 2)] == [[1, 2], [3]]
        else:
            with pytest.raises(RuntimeError, match="meta"):
                list(lib.DataLoader([1, 2, 3], 2))


class Overwritten:
    """A dataset whose samples are one buffer."""

    def __init__(self, size):
        self.buffer = torch.zeros(size)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.buffer.fill_(index)


@WORKERS
def test_a_buffer_that_is_overwritten_for_each_sample(lib, workers):
    small, large = (lib.DataLoader(Overwritten(size), 3, num_workers=workers) for size in (2, 1 << 18))
    assert [batch[:, 0].tolist() for batch in small] == [[2, 2, 2], [5, 5, 5]]
    differs = lib.differs("large-samples-are-copied-early")
    expected = [[0, 1, 2], [3, 4, 5]] if differs else [[2, 2, 2], [5, 5, 5]]
    assert [batch[:, 0].tolist() for batch in large] == expected
