"""What the dataset and collate_fn return arrives as it was: classes, attributes, memory formats, arrays."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import operator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn.parameter import Parameter

from gpuloader.torch import DataLoader, TensorDataset
from tests.alike import same
from tests.torch_suite.datasets import Items
from tests.torch_suite.libraries import assert_same_on_both

WORKERS = pytest.mark.parametrize("workers", [0, 1])


class Boxes(torch.Tensor):
    """A tensor of the user's class, which every operation keeps."""


class Keyed(dict):
    """A dict with an attribute."""

    size = 0


def boxes():
    made = torch.arange(8.0).reshape(2, 4).as_subclass(Boxes)
    made.canvas = (5, 6)
    return made


def tagged():
    made = torch.arange(3.0)
    made.tag = "a"
    return made


def twice():
    one = torch.arange(4.0)
    return {"input": one, "target": one, "length": 3}


def keyed():
    made = Keyed(a=torch.zeros(2))
    made.size = 3
    return made


def pictures():
    return torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)


def windows():
    """Return views that leave gaps, as inputs and targets cut from one tensor are."""
    rows = torch.arange(24.0).reshape(4, 6)
    return rows[:, :-1], {"targets": rows[:, 1:], "few": rows[:, :2]}, rows[0, ::2], rows.bfloat16().T[1:]


def describe(value):
    """Return what a value is, as far as a program may ask."""
    if isinstance(value, dict):
        return type(value), vars(value) if hasattr(value, "__dict__") else {}, describe(list(value.items()))
    if isinstance(value, list | tuple):
        return type(value), [describe(one) for one in value]
    if isinstance(value, torch.Tensor):
        numbers = None if value.is_meta else torch.Tensor.tolist(value)
        return type(value), vars(value), value.dtype, value.shape, value.stride(), numbers
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape, value.tolist()
    return type(value), value


def swapped():
    return np.zeros(2, ">i4")


LOST = tagged, swapped
RESULTS = [
    boxes,
    tagged,
    keyed,
    pictures,
    windows,
    lambda: torch.zeros(2, 3)[:, 1:],
    lambda: (torch.zeros(2, 3).T, [np.arange(3), np.float32(2), "a", None]),
    lambda: torch.ones(1, 3).expand(2, 3),
    lambda: np.ma.masked_array([1, 2], [True, False]),
    swapped,
    lambda: np.arange(3),
    lambda: np.zeros(2, [("x", "f4"), ("y", "i2")]),
    lambda: Parameter(torch.ones(2)).detach(),
    lambda: torch.empty(2, 3, device="meta"),
    lambda: {1: torch.zeros(1), "a": 2},
    list,
    lambda: None,
    lambda: "1 2",
    lambda: 3,
    lambda: collections.defaultdict(int, a=torch.ones(2)),
    lambda: collections.Counter("aab"),
    lambda: {"image": torch.arange(3, dtype=torch.bfloat16), "count": 3},
]


@WORKERS
def test_results_of_a_collate_fn_arrive_as_they_were(lib, workers):
    """Each of them twice in a row; without workers, from a loader of its own."""
    results = [make for make in RESULTS if not (workers and lib.name == "torch" and make in LOST)]
    for makers in [results] if workers else [[make] for make in results]:
        twice = [make for make in makers for _ in range(2)]
        loader = lib.DataLoader(twice, 1, collate_fn=lambda makers: makers[0](), num_workers=workers)
        for make, batch in zip(twice, loader, strict=True):
            assert describe(batch) == describe(make())


@WORKERS
def test_two_fields_that_are_one_tensor(lib, workers):
    for batch in lib.DataLoader(range(4), 2, collate_fn=lambda _: twice(), num_workers=workers):
        batch["input"] += 1
        assert batch["target"].tolist() == [1, 2, 3, 4]


def test_the_very_object(lib):
    """Without workers, what the function returned is what the program gets."""
    made = []

    def collate(samples):
        made.append((np.array(samples), torch.tensor(samples), {"n": len(samples)}))
        return made[-1]

    batches = list(lib.DataLoader(range(4), 2, collate_fn=collate))
    assert len(batches) == 2
    assert all(map(operator.is_, batches, made))


def test_single_samples_are_those_of_the_dataset(lib):
    tensors = [torch.zeros(2), boxes(), Parameter(torch.ones(1))]
    assert all(map(operator.is_, lib.DataLoader(tensors, batch_size=None), tensors))
    arrays = [np.zeros(2)]
    for tensor in lib.DataLoader(arrays, batch_size=None):
        tensor += 1
    assert arrays[0].tolist() == [1, 1]


@WORKERS
def test_single_samples(lib, workers):
    samples = [boxes(), (pictures(), "a", 3), {"x": np.float32(1), "y": range(2)}, keyed()]
    expected = list(torch.utils.data.DataLoader(samples, batch_size=None, num_workers=workers))
    found = list(lib.DataLoader(samples, batch_size=None, num_workers=workers))
    assert describe(found) == describe(expected)


@WORKERS
def test_samples_that_are_tensors_of_a_subclass(lib, workers):
    samples = [(boxes(), number) for number in range(4)]
    for batch in lib.DataLoader(samples, 2, num_workers=workers):
        assert [type(one) for one in batch] == [Boxes, torch.Tensor]
        assert batch[0].shape == (2, 2, 4)
        assert same(batch[0][0].as_subclass(torch.Tensor), boxes().as_subclass(torch.Tensor))


MIXED = {
    "integers, then a float": [1, 2, 2.5, 3],
    "a bool, then numbers": [True, 2, 3, 4],
    "float32, then float64": [np.float32(1), np.float64(2.5), np.float32(1), 1.0],
    "tensors of two dtypes": [torch.zeros(2), torch.full((2,), 0.1, dtype=torch.float64), torch.zeros(2)],
    "bfloat16 and float32, tensors of two dtypes": [
        torch.zeros(2, dtype=torch.bfloat16),
        torch.full((2,), 0.1),
        torch.zeros(2),
    ],
    "integers and a float beside a picture": [
        (np.full((200, 200), number, np.float32), 2.5 if number == 3 else number, "abcd"[number], {"x": [1]})
        for number in range(4)
    ],
    "more keys later": [{"x": 1}, {"x": 2, "y": 3}, {"z": "a", "x": 4}],
    "empty": [{}, {}, {}],
    "empty lists": [[], []],
    "masked arrays": [np.ma.masked_array([1, 2], [True, False]), np.ma.masked_array([3, 4], [False, False])],
    "meta tensors": [torch.empty(2, device="meta"), torch.empty(2, device="meta")],
    "large integers": [np.uint8(3), 1000],
    "NumPy's numbers, then a complex one": [np.float64(0), np.float64(1), np.complex64(1j)],
    "complex, then real numbers": [np.complex128(1), np.float64(2)],
    "integers of NumPy's and Python's": [np.int32(1), 2],
    "integers of two sizes": [np.int8(1), np.int8(2), np.int16(3)],
    "halves and a float": [np.float16(1), 1.5],
    "arrays of no dimension": [np.array(2.0, "f2"), np.array(3.0, "f2"), np.array(4.0, "f4")],
    "an array of no dimension, then a number": [np.array(1, np.uint8), np.array(2, np.uint8), 3],
    "arrays of two dtypes": [np.zeros(2, "f4"), np.ones(2), np.zeros(2, "f4")],
}


LENGTHS = [len(samples) for samples in MIXED.values()]
PARTS = [range(end - length, end) for end, length in zip(itertools.accumulate(LENGTHS), LENGTHS, strict=True)]


@functools.cache
def judge(workers):
    """Return what PyTorch makes; in its workers, tensors of two dtypes become those of the first."""
    samples = [*itertools.chain.from_iterable(MIXED.values())]
    batches = torch.utils.data.DataLoader(samples, batch_sampler=PARTS, num_workers=workers)
    return dict(zip(MIXED, map(describe, batches), strict=True))


@WORKERS
def test_mixed_samples(workers):
    samples = [*itertools.chain.from_iterable(MIXED.values())]
    batches = DataLoader(samples, batch_sampler=PARTS, num_workers=workers)
    for name, batch in zip(MIXED, batches, strict=True):
        assert describe(batch) == judge(workers)[name], name


@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 0) for name in MIXED), *((name, 1) for name in [*MIXED][::4])]
)
def test_mixed_items(name, workers):
    if name.endswith("picture"):
        pytest.skip("large items are written as they arrive")
    samples = MIXED[name]
    [batch] = DataLoader(Items(samples), len(samples), num_workers=workers)
    assert describe(batch) == judge(workers)[name]


@dataclasses.dataclass
class Label:
    """Something that PyTorch cannot collate."""

    number: int


@WORKERS
def test_types_that_the_user_has_registered(lib, monkeypatch, workers):
    functions = torch.utils.data._utils.collate.default_collate_fn_map

    def collate_labels(batch, *, collate_fn_map=None):
        return torch.tensor([label.number for label in batch])

    monkeypatch.setitem(functions, Label, collate_labels)
    samples = [{"x": (Label(number), number)} for number in range(4)]
    for batch in lib.DataLoader(samples, 2, num_workers=workers):
        assert same(batch["x"][0], batch["x"][1])


def test_changes_between_epochs_are_seen(lib):
    dataset = lib.TensorDataset(torch.arange(4))
    part = lib.Subset(dataset, [0, 1])
    whole, half = lib.DataLoader(dataset, 4), lib.DataLoader(part, 2)
    read = lambda: [batch.tolist() for loader in (whole, half) for (batch,) in loader]  # noqa: E731
    assert read() == [[0, 1, 2, 3], [0, 1]]
    dataset.tensors, part.indices = (torch.arange(4) * 10,), [2, 3]
    assert read() == [[0, 10, 20, 30], [20, 30]]


def test_resizing_in_place(lib):
    """A batch can become smaller, and take another shape; it can grow only if PyTorch has made its memory."""
    batch = next(iter(lib.DataLoader([torch.arange(3)] * 4, batch_size=2)))
    assert batch.resize_(3, 2).tolist() == [[0, 1], [2, 0], [1, 2]]
    assert batch.resize_(1).tolist() == [0]
    fixed = pytest.raises(RuntimeError, match="not resizable")
    with fixed if lib.differs("batches-do-not-grow") else contextlib.nullcontext():
        assert batch.resize_(100).shape == (100,)


def test_indices_of_a_split_are_lists(lib):
    first, second = lib.random_split(range(5), [3, 2])
    assert sorted(first.indices + second.indices) == [0, 1, 2, 3, 4]
    assert json.loads(json.dumps(first.indices)) == first.indices


@pytest.mark.parametrize("options", [{"collate_fn": list, "batch_size": 2}, {"batch_size": None}], ids=str)
def test_rows_of_hugging_face(lib, options):
    """A collate_fn gets what the dataset returns; a null that nobody reads is no error."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"ids": [[1, 2], [3], [4, 5]], "n": [1, None, 3]})
    for dataset in (rows, rows.with_format("torch", columns=["ids"]), rows.shuffle(seed=0)):
        expected = list(torch.utils.data.DataLoader(dataset, **options))
        assert describe(list(lib.DataLoader(dataset, **options))) == describe(expected)


def hugging_face_rows():
    """Columns of which every feature shows: widths, lists, text, structs, and lists within lists."""
    datasets = pytest.importorskip("datasets")
    value, sequence = datasets.Value, datasets.Sequence
    columns = {
        "small": (value("int8"), [1, 2, 3, 4]),
        "half": (value("float32"), [0.1, 0.2, 0.3, 0.4]),
        "even": (value("bool"), [False, True, False, True]),
        "text": (value("string"), ["a", "bb", "", "d"]),
        "kind": (datasets.ClassLabel(names=["cat", "dog"]), [0, 1, 1, 0]),
        "mask": (sequence(value("int8")), [[1, 1], [1, 0], [0, 1], [0, 0]]),
        "fixed": (sequence(value("float32"), length=2), [[0.1, 0.2]] * 4),
        "matrix": (datasets.Array2D((1, 2), "float32"), [[[0.1, 0.2]]] * 4),
        "rows": (datasets.Array2D((None, 2), "int32"), [[[1, 2]]] * 4),
        "empty": (sequence(value("int64")), [[]] * 4),
        "words": (sequence(value("string")), [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]),
        "boxes": (sequence(sequence(value("int32"))), [[[1, 2]], [[3, 4]], [[5, 6]], [[7, 8]]]),
        "facts": ({"x": value("float32"), "l": sequence(value("int8"))}, [{"x": 0.1, "l": [1]}] * 4),
    }
    features = datasets.Features({name: feature for name, (feature, _) in columns.items()})
    return datasets.Dataset.from_dict({name: given for name, (_, given) in columns.items()}, features)


def compose(library, kind, part):
    if kind == "subset":
        return library.Subset(library.Subset(part, [3, 0, 2]), [2, 0])
    if kind == "split":
        return library.random_split(part, [2, 2], torch.Generator().manual_seed(0))[0]
    if kind == "concatenated":
        return library.ConcatDataset([part, part])
    return part.to_iterable_dataset() if kind == "stream" else part


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", [None, "numpy", "torch"])
@pytest.mark.parametrize("kind", ["rows", "subset", "split", "concatenated", "stream", "partly formatted"])
def test_batches_of_hugging_face(lib, form, kind):
    rows = hugging_face_rows()
    # In the format "numpy", PyTorch refuses lists of text.
    rows = rows.remove_columns(["words", "facts"]) if form == "numpy" else rows
    for names in [*([name] for name in rows.column_names), rows.column_names]:
        part = rows.select_columns(names).with_format(form)
        if kind == "partly formatted":
            part = rows.with_format(form, columns=names[:1], output_all_columns=True)
        found = [
            describe(list(one.DataLoader(compose(one, kind, part), 2))) for one in (lib, torch.utils.data)
        ]
        assert found[0] == found[1], names


def test_workers_read_rows_of_hugging_face(lib):
    rows = hugging_face_rows()
    for dataset in (rows, rows.to_iterable_dataset(num_shards=2)):
        found = [describe(list(one.DataLoader(dataset, 2, num_workers=2))) for one in (lib, torch.utils.data)]
        assert found[0] == found[1]


def clips(*shape):
    """Return samples whose dimension of colors, the second, comes last in memory."""
    one = torch.arange(float(np.prod(shape))).reshape(shape)
    return one.permute(0, -1, *range(1, len(shape) - 1))


LAID_OUT = {
    "clips": [clips(2, 4, 4, 3)] * 4,
    "volumes": [clips(2, 4, 3, 2, 3)] * 4,
    "gray": [clips(2, 4, 4, 1)] * 4,
    "arrays": [clips(2, 4, 4, 3).numpy()] * 4,
    "windows": [clips(2, 4, 4, 3)[:, :, 1:3, 1:]] * 4,
    "in containers": [({"clip": clips(2, 4, 4, 3), "label": 1}, [clips(2, 4, 4, 3).numpy()])] * 4,
    "of both kinds": [clips(2, 4, 4, 3), clips(2, 4, 4, 3).contiguous()] * 2,
    "in another order": [torch.zeros(2, 3, 4, 5).permute(3, 2, 1, 0)] * 4,
    "pictures": [torch.zeros(4, 4, 3).permute(2, 0, 1)] * 4,
    "a tensor": torch.stack([clips(2, 4, 4, 3)] * 4),
}


@WORKERS
def test_batches_of_clips_have_the_memory_format_of_the_samples(workers):
    """By it, a convolution chooses its algorithm, and so how losses are rounded."""

    def program(lib):
        found = []
        tensors = lib.TensorDataset(torch.stack([clips(2, 4, 4, 3)] * 4), torch.arange(4))
        for samples in (*LAID_OUT.values(), tensors, lib.Subset(tensors, [2, 0])):
            loader = lib.DataLoader(samples, 2, shuffle=True, num_workers=workers)
            found.append([describe(batch) for batch in loader])
        return found

    assert_same_on_both(program)


def test_a_dataset_of_clips_that_a_program_replaces_is_asked_again():
    dataset = TensorDataset(torch.zeros(2, 2, 3, 4, 4))
    loader = DataLoader(dataset, 2)
    for tensor in (torch.stack([clips(2, 4, 4, 3)] * 2), torch.zeros(2, 2, 3, 4, 4)):
        dataset.tensors = (tensor,)
        [[batch]] = loader
        assert batch.stride() == torch.utils.data.default_collate(list(tensor)).stride()


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("labels", [int, torch.tensor, np.float32])
@pytest.mark.parametrize("size", [2, 40_000])  # PyTorch copies the larger ones in several threads
def test_tensors_of_later_batches_and_one_that_is_unlike(lib, size, labels, in_thread):
    """The first batch shows that samples have tensors; later ones are written field by field."""
    samples = [(torch.full((size,), float(index)), labels(index)) for index in range(8)]
    wanted = [[[2 * at, 2 * at + 1], [2 * at, 2 * at + 1]] for at in range(4)]

    def read():
        for rows, numbers in lib.DataLoader(samples, 2):
            assert rows.is_contiguous()
            found.append([rows[:, -1].tolist(), numbers.tolist()])
            kinds.append(rows.dtype)

    def run():
        found.clear(), kinds.clear()
        if in_thread:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(read).result()
        return read()

    found, kinds = [], []
    run()
    assert found == wanted
    samples[5] = (samples[5][0].double(), samples[5][1])
    run()
    assert (found, kinds) == (wanted, [torch.float32] * 2 + [torch.float64, torch.float32])
    samples[5] = (torch.zeros(size + 1), samples[5][1])
    with pytest.raises(RuntimeError, match="equal size"):
        run()
    assert found == wanted[:2]
