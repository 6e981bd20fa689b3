"""default_collate, default_convert, and what a loader makes of samples by itself."""

import collections
import tempfile

import numpy as np
import pytest
import torch

from gpuloader import SampleError
from tests.alike import same
from tests.torch_suite.datasets import Letters, Made, Nested, Pair, Record, Records, Zeros


class Listed(list):
    """A list of the user's own class."""


class Keyed(dict):
    """A dict of the user's own class."""


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float64, torch.float64),
        (np.float32, torch.float32),
        (np.float16, torch.float16),
        (np.int64, torch.int64),
        (np.int32, torch.int32),
        (np.int16, torch.int16),
        (np.int8, torch.int8),
        (np.uint8, torch.uint8),
        (np.bool_, torch.bool),
        (np.complex64, torch.complex64),
    ],
)
def test_numpy_numbers_keep_their_dtype(lib, dtype, expected):
    batch = next(iter(lib.DataLoader(Zeros(dtype), batch_size=2)))
    assert isinstance(batch, torch.Tensor)
    assert batch.dtype == expected


def test_arrays_are_stacked(lib):
    batch = next(iter(lib.DataLoader(Made(lambda index: np.ones((2, 3, 4)) * index, 1000), batch_size=12)))
    assert batch.dtype == torch.float64
    assert batch.shape == (12, 2, 3, 4)


@pytest.mark.parametrize("values", [[1, 2, -1], [1.1, 2.3, -0.9], [True, False]], ids=str)
def test_numbers_become_a_tensor(lib, values):
    expected = torch.utils.data.default_collate(values)
    assert same(lib.default_collate(values), expected)
    assert same(list(lib.DataLoader(values, len(values))), [expected])


def test_a_chain_of_arrays_of_different_dtypes(lib):
    parts = [lib.TensorDataset(torch.zeros(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    dataset = lib.ConcatDataset(parts)
    if lib.differs("chained-arrays-match"):
        with pytest.raises(RuntimeError, match=r"dataset 0 .* has float32, but dataset 1 .* has float64"):
            lib.DataLoader(dataset, 4)
    else:
        ((numbers,),) = lib.DataLoader(dataset, 4)
        assert numbers.dtype == torch.float64
    apart = [numbers.dtype for (numbers,) in lib.DataLoader(dataset, 2)]
    assert apart == [torch.float32, torch.float64]


@pytest.mark.parametrize("values", [[1, 2.5], [True, 2]], ids=str)
def test_numbers_of_different_types(lib, values):
    expected = torch.utils.data.default_collate(values)
    assert same(lib.default_collate(values), expected)
    loader = lib.DataLoader(values, 2)
    if lib.differs("later-samples-match-the-first"):
        with pytest.raises(SampleError, match="first sample"):
            list(loader)
    else:
        assert same(list(loader), [expected])


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (["a", "b", "c"], ["a", "b", "c"]),
        ([b"a", b"b"], [b"a", b"b"]),
        ([Keyed(a=1, b=2), Keyed(a=3, b=4)], Keyed(a=torch.tensor([1, 3]), b=torch.tensor([2, 4]))),
        ([Listed([1, 2]), Listed([4, 5])], Listed([torch.tensor([1, 4]), torch.tensor([2, 5])])),
        ([(1, 2.5), (2, 0.5)], [torch.tensor([1, 2]), torch.tensor([2.5, 0.5], dtype=torch.float64)]),
        ([Pair(1, 2), Pair(3, 4)], Pair(torch.tensor([1, 3]), torch.tensor([2, 4]))),
        (
            [collections.defaultdict(int, a=1), collections.defaultdict(int, a=2)],
            collections.defaultdict(int, a=torch.tensor([1, 2])),
        ),
        (
            [collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=3, a=4)],
            collections.OrderedDict(b=torch.tensor([1, 3]), a=torch.tensor([2, 4])),
        ),
    ],
    ids=["text", "bytes", "dict", "list", "tuple", "named tuple", "defaultdict", "ordered"],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_containers_keep_their_class(lib, samples, expected, workers):
    """Except for tuples, which become lists."""
    assert same(lib.default_collate(samples), expected)
    assert same(list(lib.DataLoader(samples, len(samples), num_workers=workers)), [expected])


@pytest.mark.parametrize(
    "samples", [[(1, "a"), (2, "b")], [Pair(1, "a"), Pair(2, "b")]], ids=["tuple", "named"]
)
def test_text_in_tuples(lib, samples):
    [(numbers, text)] = lib.DataLoader(samples, 2)
    assert numbers.tolist() == [1, 2]
    assert text == (["a", "b"] if lib.differs("text-is-a-list") else ("a", "b"))


def test_other_sequences(lib):
    [batch] = lib.DataLoader([range(2), range(2)], 2)
    [single] = lib.DataLoader([range(2)], batch_size=None)
    if lib.differs("objects-are-collected"):
        assert batch == [range(2), range(2)]
        assert single == range(2)
    else:
        assert same(batch, [torch.tensor([0, 0]), torch.tensor([1, 1])])
        assert single == [0, 1]


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (Keyed(a=1, b=2), Keyed(a=1, b=2)),
        (Listed([1, 2, 3]), Listed([1, 2, 3])),
        ({"a": np.arange(2)}, {"a": torch.tensor([0, 1])}),
        ((np.zeros(1), "a"), [torch.zeros(1, dtype=torch.float64), "a"]),
        (Pair(np.zeros(1), 2), Pair(torch.zeros(1, dtype=torch.float64), 2)),
        (np.float32(2.5), torch.tensor(2.5)),
        (np.array(["a"]), np.array(["a"])),
    ],
    ids=["dict", "list", "dict of arrays", "tuple", "named tuple", "number", "array of text"],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_single_samples_are_converted(lib, sample, expected, workers):
    assert same(lib.default_convert(sample), expected)
    assert same(list(lib.DataLoader([sample], batch_size=None, num_workers=workers)), [expected])


@pytest.mark.parametrize(
    "samples",
    [
        np.array([[["a", "b", "c"]]]),
        np.array([object(), object()]),
        np.array([[[object(), object()]]]),
        [["X"], ["X", "X"]],
        [["X", "X"], ["X"]],
        [{"a": 1}, {"b": 1}],
        [torch.zeros(2), torch.zeros(3)],
        [None, None],
    ],
    ids=["text", "objects", "objects inside", "longer", "shorter", "keys", "shapes", "None"],
)
def test_what_cannot_be_collated_is_refused(lib, samples):
    with pytest.raises((TypeError, RuntimeError, KeyError)):
        lib.default_collate(samples)


@pytest.mark.parametrize(
    "samples", [[["X"], ["X", "X"]], [["X", "X"], ["X"]], [torch.zeros(2), torch.zeros(3)]], ids=str
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_refuses_samples_that_do_not_match(lib, samples, workers):
    with pytest.raises(RuntimeError):
        list(lib.DataLoader(samples, 2, num_workers=workers))


@pytest.mark.parametrize("value", [None, object(), {1, 2}], ids=["None", "object", "set"])
def test_objects_that_are_no_numbers(lib, value):
    loader = lib.DataLoader([value, value], 2)
    if lib.differs("objects-are-collected"):
        assert list(loader) == [[value, value]]
    else:
        with pytest.raises(TypeError, match="default_collate"):
            list(loader)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_a_memory_map_is_stacked(lib):
    expected = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7]])
    with tempfile.TemporaryFile() as file:
        written = np.memmap(file, "int64", "w+", shape=(4, 2))
        written[:] = expected.numpy()
        rows = list(np.memmap(file, "int64", "r", shape=(4, 2)))
        assert torch.equal(lib.default_collate(rows), expected)
        assert torch.equal(next(iter(lib.DataLoader(rows, 4))), expected)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_nested_dicts(lib, options):
    for number, batch in enumerate(lib.DataLoader(Nested(4), batch_size=2, **options)):
        index = 2 * number
        assert list(batch) == ["picture", "about"]
        assert batch["picture"].shape == (2, 4, 2)
        assert batch["picture"][:, 0, 0].tolist() == [index, index + 1]
        assert batch["about"]["number"].tolist() == [index, index + 1]


@pytest.mark.parametrize("workers", [0, 4])
def test_text_stays_text(lib, workers):
    loader = lib.DataLoader(Letters(), batch_size=2, shuffle=True, num_workers=workers)
    pairs = [pair for text, number in loader for pair in zip(text, number.tolist(), strict=True)]
    assert sorted(pairs) == [("1", 0), ("2", 1), ("3", 2), ("4", 3), ("5", 4)]


@pytest.mark.parametrize("workers", [0, 1])
def test_named_tuples(lib, workers):
    for batch in lib.DataLoader(Records(4), batch_size=2, num_workers=workers):
        assert type(batch) is Record
        assert type(batch.pair) is Pair
        assert isinstance(batch.pair.positive, torch.Tensor)
        assert list(batch.label) in (["0", "1"], ["2", "3"])
        assert batch.noise.shape == (2, 3)
    for index, sample in enumerate(lib.DataLoader(Records(4), batch_size=None, num_workers=workers)):
        assert type(sample) is Record
        assert sample.pair == Pair(index, -index)
        assert type(sample.pair.positive) is int
        assert isinstance(sample.noise, torch.Tensor)
