import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import TableDataset
from gpuloader.errors import SampleError
from gpuloader.sources.array_rows import find_arrays
from gpuloader.sources.dataset import (
    ChainDataset,
    ComposeDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from tests.loading import load


class Squares(Dataset):
    def __init__(self, count):
        self.count = count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(f"no square {index}")
        assert type(index) is int
        return index**2

    def __len__(self):
        return self.count


class ManySquares(Squares):
    """Reads several samples at once, and records the requested indices."""

    def __init__(self, count):
        super().__init__(count)
        self.asked = []

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [self[index] for index in indices]


class Letters(IterableDataset):
    def __init__(self, letters="abc"):
        self.letters = letters

    def __iter__(self):
        return iter(self.letters)


MAP_STYLE = "must be map-style, got the IterableDataset Letters"
ITERABLE = "must be an IterableDataset, got Squares"


def test_the_bases_say_what_a_subclass_must_define():
    empty, bare = type("Empty", (Dataset,), {})(), type("Bare", (IterableDataset,), {})()
    letters = Letters()
    assert isinstance(letters, Dataset)
    for use, kind, problem in (
        (lambda: empty[0], NotImplementedError, "Empty must define __getitem__"),
        (lambda: len(empty), NotImplementedError, "Empty must define __len__"),
        (lambda: iter(bare), NotImplementedError, "Bare must define __iter"),
        (lambda: letters[1], TypeError, "Letters is an IterableDataset: .* no sample 1"),
        (lambda: len(letters), TypeError, "Letters is an IterableDataset: .* no length"),
    ):
        with pytest.raises(kind, match=problem):
            use()


class TestTensorDataset:
    @pytest.mark.parametrize("listed", [True, False])
    def test_a_sample_is_one_row_of_every_array(self, listed):
        images, labels = np.arange(12, dtype=">f4").reshape(4, 3), np.arange(4, dtype=np.uint8)
        dataset = TensorDataset([images, labels]) if listed else TensorDataset(images, labels)
        assert type(dataset[0]) is tuple
        image, label = dataset[1]
        assert (image.tolist(), label, dataset[-1][1], len(dataset)) == ([3, 4, 5], 1, 3, 4)
        assert dataset.arrays[0] is images  # not a copy
        assert dataset.arrays[1] is labels
        assert dataset.tensors == dataset.arrays
        (row,) = TensorDataset(images)[2]  # one array is one field
        assert row.tolist() == [6, 7, 8]
        assert TensorDataset([5, 6, 7], [1.0, 2.0, 3.0])[1] == (6, 2.0)

    def test_lists_and_whatever_is_an_array_will_do(self):
        class Arraylike:
            def __array__(self, dtype=None, copy=None):
                return np.ones((2, 2), np.float32)

        dataset = TensorDataset([[[1, 2], [3, 4]], Arraylike(), range(2), memoryview(b"ab")])
        assert [array.dtype for array in dataset.arrays] == [np.int64, np.float32, np.int64, np.uint8]


def split(*arguments, **options):
    return random_split(Squares(5), *arguments, **options)


LENGTHS = "lengths must be numbers of 0 or more, got"


@pytest.mark.parametrize(
    ("make", "kind", "problem"),
    [
        (lambda: TensorDataset(), TypeError, "at least one array, got none"),
        (lambda: TensorDataset([]), TypeError, "at least one array, got none"),
        (lambda: TensorDataset([np.zeros(2), [1] * 3]), ValueError, "array 0 has 2 rows and array 1 has 3"),
        (lambda: TensorDataset(*np.zeros((2, 2)), [1]), ValueError, "array 0 has 2 rows and array 2 has 1"),
        (lambda: TensorDataset([5, 6]), ValueError, "array 0 must have a first dimension, got the single"),
        (lambda: TensorDataset(np.array(["a"])), TypeError, "0 must hold numbers or booleans, got dtype <U1"),
        (lambda: TensorDataset([1, 2], [None, 1]), TypeError, "array 1 must hold .*, got dtype object"),
        (lambda: TensorDataset(np.zeros(2, "M8[s]")), TypeError, "array 0 must hold .*, got dtype datetime"),
        (lambda: TensorDataset([[1], [2, 3]], range(2)), TypeError, "array 0: cannot make an array of numbe"),
        (lambda: TensorDataset([[1, 2], [3, 4], [5, 6]]), TypeError, r"a list of 3 lists; .*\(\*fields\)"),
        (lambda: TensorDataset(([1, 2], (3, 4))), TypeError, "got a list of 2 lists"),
        (lambda: TensorDataset(None), TypeError, "array 0 must hold .*, got dtype object"),
        (lambda: Subset(Squares(3), [0, 3]), IndexError, "3 samples has no sample 3, .* at position 1"),
        (lambda: Subset(Squares(3), [-4]), IndexError, "Squares of 3 samples has no sample -4, .* at"),
        (lambda: Subset(Squares(3), [True, False, True]), TypeError, "boolean mask; pass numpy.flatnonzero"),
        (lambda: Subset(Squares(3), [0.0]), TypeError, "indices must be a list of integers"),
        (lambda: Subset(Squares(3), 2), TypeError, "indices must be a list of integers, got int"),
        (lambda: Subset(Letters(), [0]), TypeError, f"dataset {MAP_STYLE}"),
        (lambda: Subset(iter("abc"), [0]), TypeError, "must have __getitem__ and __len__, got str_"),
        *(
            (partial(kind, []), ValueError, "at least one dataset, got none")
            for kind in (ComposeDataset, ChainDataset, ConcatDataset)
        ),
        (lambda: ComposeDataset([Squares(2), "abc"]), ValueError, "0 has 2 samples and dataset 1 has 3"),
        (lambda: ComposeDataset([Squares(2), Letters()]), TypeError, f"dataset 1 {MAP_STYLE}"),
        (lambda: ComposeDataset([5]), TypeError, "dataset 0 must have __getitem__ and __len__, got int"),
        (lambda: ConcatDataset([Letters()]), TypeError, f"dataset 0 {MAP_STYLE}"),
        (lambda: ChainDataset([Letters(), Squares(3)]), TypeError, f"dataset 1 {ITERABLE}; for map-style"),
        (lambda: Squares(3) + 5, TypeError, "dataset 1 must have __getitem__ and __len__, got int"),
        (lambda: Squares(3) + Letters(), TypeError, f"dataset 1 {MAP_STYLE}"),
        (lambda: Letters() + Squares(3), TypeError, f"dataset 1 {ITERABLE}"),
        (lambda: random_split(Letters(), [1, 2]), TypeError, f"dataset {MAP_STYLE}"),
        (lambda: split([2, 2]), ValueError, r"lengths \[2, 2\] sum to 4, but the dataset has 5 samples"),
        (lambda: split([]), ValueError, r"lengths \[\] sum to 0, but the dataset has 5"),
        (lambda: split([0.3, 0.3]), ValueError, r"fractions must sum to 1, got \[0.3, 0.3\]"),
        (lambda: split([0.5, 3]), ValueError, "fractions must sum to 1"),
        *(
            (partial(split, [wrong, 4]), ValueError, f"{LENGTHS} {wrong!r}")
            for wrong in (-1, -0.5, float("nan"), "5", True)
        ),
        (lambda: split([5], -1), ValueError, "generator must be an integer from 0 to .*, got -1"),
        (lambda: split([5], "seed"), TypeError, "a seed, a NumPy generator or a torch.Generator, got str"),
        (lambda: split([5], True), ValueError, "generator must be an integer from 0 to .*, got True"),
        (lambda: split([5], 5, seed=5), ValueError, "pass either generator or seed, got both"),
        (lambda: split([5], seed=-1), ValueError, "seed must be an integer from 0"),
        *(
            (partial(split, [5], stratify=labels), ValueError, "stratify must have one label for each of")
            for labels in ([1, 2], 3, [[1]] * 5)
        ),
        (lambda: split([5], stratify=[1, "a", None, 2, 3]), ValueError, "stratify must have labels of one"),
    ],
)
def test_what_does_not_fit(make, kind, problem):
    with pytest.raises(kind, match=problem):
        make()


class TestComposeDataset:
    def test_fields_become_one_flat_tuple(self):
        images = TensorDataset([np.arange(6).reshape(3, 2), np.arange(3)])
        dataset = ComposeDataset([images, Squares(3), [["x", "y"], ("z",), {}]])
        image, *others = dataset[0]
        assert image.tolist() == [0, 1]
        assert others == [0, 0, "x", "y"]
        assert dataset[-1][1:] == (2, 4, {})
        assert len(dataset) == 3

    def test_many_at_once(self):
        many = ManySquares(4)
        dataset = ComposeDataset([many, Squares(4)])
        assert dataset.__getitems__([3, -4]) == [(9, 9), (0, 0)]
        assert many.asked == [[3, 0]]
        with pytest.raises(IndexError, match="no sample 4"):
            dataset.__getitems__([0, 4])


class TestChainDataset:
    def test_one_after_another_and_again(self):
        chained = ChainDataset(iter([Letters("ab"), Letters(""), Letters("c")]))
        assert list(chained) == list(chained) == ["a", "b", "c"]
        assert isinstance(chained, IterableDataset)
        items = iter(ChainDataset([Letters("a"), type("None", (IterableDataset,), {})()]))
        assert next(items) == "a"  # before the next is started
        with pytest.raises(NotImplementedError, match="must define __iter__"):
            next(items)

    def test_its_length_is_that_of_its_data_sets(self):
        class Counted(Letters):
            def __len__(self):
                return len(self.letters)

        assert len(ChainDataset([Counted("ab"), Counted(""), Counted("c")])) == 3
        with pytest.raises(TypeError, match=r"Letters is an IterableDataset: .* no length unless it"):
            len(ChainDataset([Counted("ab"), Letters("c")]))


class TestConcatDataset:
    @given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6))
    def test_it_reads_as_the_lists_joined(self, lengths):
        parts = [[(part, index) for index in range(length)] for part, length in enumerate(lengths)]
        joined = [pair for part in parts for pair in part]
        dataset = ConcatDataset(parts)
        assert len(dataset) == len(joined)
        assert [dataset[index] for index in range(len(joined))] == joined
        for index in range(-len(joined), 0):
            assert dataset[index] == joined[index]
        for index in (len(joined), -len(joined) - 1):
            with pytest.raises(IndexError, match=f"of {len(joined)} samples has no sample {index}"):
                dataset[index]

    @given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4), data=st.data())
    def test_many_at_once_are_those_one_by_one(self, lengths, data):
        kinds = [data.draw(st.sampled_from([Squares, ManySquares])) for _ in lengths]
        parts = [kind(length) for kind, length in zip(kinds, lengths, strict=True)]
        dataset = ConcatDataset(parts)
        indices = data.draw(st.lists(st.integers(-sum(lengths), sum(lengths) - 1), max_size=9))
        assert hasattr(dataset, "__getitems__") is (ManySquares in kinds)
        if ManySquares in kinds:
            assert dataset.__getitems__(indices) == [dataset[index] for index in indices]
            assert all(len(part.asked) <= 1 for part in parts if isinstance(part, ManySquares))


class TestSubset:
    def test_a_range_takes_no_memory(self):
        subset = Subset(range(10**15), range(10**14, 10**15, 3))
        assert (subset[7], len(subset)) == (10**14 + 21, 3 * 10**14)
        with pytest.raises(IndexError, match="has no sample 12"):
            Subset(range(10), range(0, 15, 3))

    def test_it_reads_the_samples_at_its_indices(self):
        subset = Subset(Squares(5), [4, 0, 4])
        assert [subset[index] for index in range(3)] == [16, 0, 16]
        assert (subset[-3], len(subset), subset.dataset.count) == (16, 3, 5)
        assert list(Subset(Squares(3), [])) == []
        assert list(Subset("abc", [-1, -3])) == ["c", "a"]
        assert Subset(Subset(range(10, 20), [4, 0, 7]), [2, 1])[[0, 1]].tolist() == [17, 10]
        # As in PyTorch: two lists can be joined, and assigning others takes effect.
        assert subset.indices + [1] == [4, 0, 4, 1]  # noqa: RUF005
        subset.indices = [2]
        assert list(subset) == [4]

    @pytest.mark.parametrize(
        "indices",
        [slice(1, None, 2), range(1, 5, 2), (1, 3), [1, 3], np.array([1, 3], "u1"), np.array([1, 3], "u8")],
        ids=repr,
    )
    def test_it_takes_any_list_of_indices(self, indices):
        subset = Subset(Squares(5), indices)
        assert list(subset) == [1, 9]
        assert list(subset.indices) == [1, 3]

    def test_what_is_no_index_is_refused_also_where_blocks_are_read(self):
        rows = TableDataset({"x": np.arange(5), "name": list("abcde")})
        for dataset in (rows, Subset(rows, np.arange(4))):
            for wrong in ([1.5, 2.7], ["1"], [None], [2**63], [9], [-9]):
                kinds = ValueError if wrong == [-9] else (TypeError, IndexError)
                with pytest.raises(kinds):
                    dataset.take_block(wrong)
            assert dataset.take_block(np.array([1, -1], "i2")).columns()["x"][0] == 1

    def test_keys_of_a_data_set_like_a_dict(self):
        class ByName(Dataset):
            def __getitem__(self, name):
                return len(name)

            def __len__(self):
                return 3

        assert list(Subset(ByName(), ["one", "three"])) == [3, 5]
        animals = {"cat": 1, "dog": 2, 7: 3, ("a", 0): 4}
        assert list(Subset(animals, ["dog", 7])) == [2, 3]
        assert Subset(animals, [("a", 0), "cat"])[-1] == 1
        assert sorted(Subset(animals, animals.keys())) == [1, 2, 3, 4]
        assert Subset({-5: "x"}, [-5])[0] == "x"
        assert list(pickle.loads(pickle.dumps(Subset({"a": 1}, ["a"])))) == [1]
        assert len(Subset(animals, [])) == 0
        numbered = {0: "a", 1: "b"}
        assert sorted(sample for part in random_split(numbered, [1, 1]) for sample in part) == ["a", "b"]
        assert list(ConcatDataset([numbered])) == ["a", "b"]
        with pytest.raises(KeyError, match="bird"):
            Subset(animals, ["bird"])[0]
        with pytest.raises(IndexError, match="Subset of 2 samples has no sample 2"):
            Subset(animals, ["cat", "dog"])[2]

    def test_many_at_once(self):
        many = ManySquares(5)
        subset = Subset(Subset(many, [4, 3, 2, 1]), [0, -1, 1])
        assert subset.__getitems__([2, 0, -2]) == [9, 16, 1]
        assert many.asked == [[3, 4, 1]]


def test_the_sum_of_two_is_one_after_the_other():
    both = Squares(3) + Squares(2)
    assert isinstance(both, ConcatDataset)
    assert list(both) == [0, 1, 4, 0, 1]
    assert both.cumulative_sizes == [3, 5]
    assert [len(one) for one in both.datasets] == [3, 2]
    assert list(both + Subset([5, 6, 7], [2])) == [0, 1, 4, 0, 1, 7]
    streams = Letters("ab") + Letters("c")
    assert isinstance(streams, ChainDataset)
    assert list(streams) == ["a", "b", "c"]


WRAPPED = [
    pytest.param(lambda inner: Subset(inner, [0, 1]), id="Subset"),
    pytest.param(lambda inner: ConcatDataset([inner, inner]), id="ConcatDataset"),
    pytest.param(lambda inner: ComposeDataset([inner, inner]), id="ComposeDataset"),
]


@pytest.mark.parametrize("wrap", WRAPPED)
class TestReadingManyAtOnce:
    def test_it_is_offered_where_the_data_set_inside_does(self, wrap):
        again = pickle.loads(pickle.dumps(wrap(ManySquares(2))))
        assert again.__getitems__([1]) == [again[1]]
        assert hasattr(wrap(wrap(ManySquares(2))), "__getitems__")
        for without in (wrap(wrap(Squares(2))), pickle.loads(pickle.dumps(wrap(Squares(2))))):
            assert not hasattr(without, "__getitems__")
        with pytest.raises(AttributeError, match="object has no attribute '__getitems__'"):
            wrap(Squares(2)).__getitems__([0])

    def test_it_is_not_where_a_subclass_reads_samples_itself(self, wrap):
        wrapped = wrap(ManySquares(2))

        class Own(type(wrapped)):
            def __getitem__(self, index):
                return "mine"

        class OwnMany(Own):
            def __getitems__(self, indices):
                return ["many" for _ in indices]

        wrapped.__class__ = Own
        assert not hasattr(wrapped, "__getitems__")
        wrapped.__class__ = OwnMany
        assert wrapped.__getitems__([0]) == ["many"]

    def test_it_must_give_as_many_samples_as_indices(self, wrap):
        class Short(ManySquares):
            def __getitems__(self, indices):
                return [0]

        with pytest.raises(SampleError, match=r"Short.__getitems__ returned 1 samples for 2 indices"):
            wrap(Short(2)).__getitems__([0, 1])


class TestRandomSplit:
    @given(
        labels=st.lists(st.integers(0, 3), min_size=1, max_size=80),
        shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
        seed=st.integers(0, 2**64 - 1),
    )
    def test_labels_are_spread_evenly(self, labels, shares, seed):
        lengths = [share / sum(shares) for share in shares]
        parts = random_split(labels, lengths, seed=seed, stratify=labels)
        assert [len(part) for part in parts] == [
            len(part) for part in random_split(labels, lengths, seed=seed)
        ]
        assert sorted(index for part in parts for index in part.indices) == list(range(len(labels)))
        for label in range(4):
            for part in parts:
                wanted = labels.count(label) * len(part) / len(labels)
                assert abs(list(part).count(label) - wanted) <= len(parts)

    def test_labels_may_be_text_and_parts_stay_in_random_order(self):
        names = np.array(["cat", "dog"] * 50 + ["rare"] * 10)
        train, test = random_split(range(110), [0.9, 0.1], seed=3, stratify=names)
        assert sorted(names[list(test)].tolist()) == ["cat"] * 5 + ["dog"] * 5 + ["rare"]
        assert list(train) != sorted(train)
        other, _ = random_split(range(110), [0.9, 0.1], seed=4, stratify=list(names))
        assert set(other) != set(train)

    @given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=5), seed=st.integers(0, 2**64 - 1))
    def test_parts_are_disjoint_and_complete(self, sizes, seed):
        parts = random_split(Squares(sum(sizes)), sizes, seed)
        assert [len(part) for part in parts] == sizes
        assert sorted(index for part in parts for index in part.indices) == list(range(sum(sizes)))

    @pytest.mark.parametrize(
        ("count", "fractions", "sizes"),
        [
            (10, [1.0], [10]),
            (0, [0.5, 0.5], [0, 0]),
            (10, [1.0, 0], [10, 0]),
            (10, [0.1] * 10, [1] * 10),
            (10, [0.7, 0.2, 0.1], [7, 2, 1]),
            # As observed with PaddlePaddle 3.3.1:
            (5, [0.5, 0.5], [3, 2]),
            (10, [0.33, 0.33, 0.34], [4, 3, 3]),
            (11, [0.33, 0.33, 0.34], [4, 4, 3]),
        ],
    )
    def test_fractions_are_rounded_down_and_the_rest_dealt_out(self, count, fractions, sizes):
        assert [len(part) for part in random_split(Squares(count), fractions)] == sizes

    def test_a_seed_repeats_it(self):
        def split(*generator, **options):
            parts = random_split(Squares(10), [3, 7], *generator, **options)
            return [list(part.indices) for part in parts]

        assert split(0) == [[1, 9, 0], [8, 4, 6, 7, 2, 3, 5]]  # in every release
        assert split(3) == split(np.int64(3)) == split(seed=3)
        assert split(3) != split(4)
        assert split(np.random.default_rng(3)) == split(np.random.default_rng(3))
        assert split(np.random.RandomState(3)) == split(np.random.RandomState(3))
        np.random.seed(3)
        first = split(None)
        np.random.seed(3)
        assert split(None) == first

    def test_parts_do_not_share_memory(self):
        first, second = random_split(Squares(10), [5, 5], np.random.default_rng(0))
        kept = second.indices.copy()
        first.indices.sort()
        assert (second.indices == kept).all()


class TestArraysThroughALoader:
    """A loader gathers their rows itself, unless code of a subclass has to run."""

    @given(data=st.data(), depth=st.integers(0, 4))
    def test_subsets_of_arrays_have_the_rows_that_they_say(self, data, depth):
        dataset = TensorDataset([np.arange(10)])
        for _ in range(depth):
            count = len(dataset)
            indices = st.integers(-count, count - 1)
            dataset = Subset(dataset, data.draw(st.lists(indices, min_size=1, max_size=12)))
        source = find_arrays(dataset)
        assert (source.rows is None) == (depth == 0)
        loaded = [number for (batch,) in load(dataset, batch_size=4) for number in batch.tolist()]
        assert loaded == [dataset[index][0] for index in range(len(dataset))]

    @pytest.mark.parametrize("name", ["__getitem__", "__getitems__", "__len__"])
    def test_code_of_a_subclass_has_to_run(self, name):
        own = {name: lambda self, *_: 1}
        tensors = type("OwnTensors", (TensorDataset,), own)([np.arange(3)])
        part = type("OwnSubset", (Subset,), own)(TensorDataset([np.arange(3)]), [0])
        for dataset in (tensors, part, Subset(part, [0]), Subset(tensors, [0]), Squares(3), Letters(), None):
            assert find_arrays(dataset) is None
