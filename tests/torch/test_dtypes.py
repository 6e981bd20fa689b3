"""Tensors of every dtype and kind as samples, in a TensorDataset, and as results of a collate_fn."""

import functools
import io
import pickle
import re
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils.data import DataLoader as Theirs  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

import gpuloader  # noqa: E402
from gpuloader import DataFileError, LoaderError, TableDataset  # noqa: E402
from gpuloader.fetch.processes.shipping import dump  # noqa: E402
from gpuloader.torch import DataLoader, TensorDataset  # noqa: E402
from tests.alike import same  # noqa: E402
from tests.sample_sets import Made  # noqa: E402

LACKING = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex32"]
"""Dtypes that NumPy lacks."""

DTYPES = [*LACKING, "float16", "uint16", "uint32", "uint64", "bool", "complex64", "int8", "float64"]

SPECIAL = {
    "sparse": lambda: torch.eye(2).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
}

WORKERS = [{}, {"num_workers": 1}, {"num_workers": 2, "worker_type": "thread"}]
NAMES = ["inline", "processes", "threads"]
by_workers = pytest.mark.parametrize("workers", WORKERS, ids=NAMES)

pytestmark = pytest.mark.filterwarnings(
    "ignore:ComplexHalf support is experimental:UserWarning",
    "ignore:The PyTorch API of nested tensors:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:TypedStorage is deprecated:UserWarning",
)


def make(dtype, count=4):
    return [(torch.arange(3.0) + index).to(getattr(torch, dtype)) for index in range(count)]


def assert_alike(samples, workers=None, **options):
    ours = list(DataLoader(samples, **options, **(workers or {})))
    theirs = list(Theirs(samples, **options))
    assert same(ours, theirs), (ours, theirs)


# Threads get some: of NumPy's, of those that it lacks, and of those that PyTorch hardly knows. Fewer get a
# process, which starts for each.
OF_WORKERS = {
    "inline": DTYPES,
    "processes": ["bfloat16", "uint16"],
    "threads": ["bfloat16", "float8_e5m2", "complex32", "uint16"],
}


@pytest.mark.parametrize(
    ("dtype", "workers"),
    [
        pytest.param(dtype, workers, id=f"{dtype}-{name}")
        for workers, name in zip(WORKERS, NAMES, strict=True)
        for dtype in OF_WORKERS[name]
    ],
)
class TestDtypes:
    @pytest.mark.parametrize("size", [2, None], ids=str)
    def test_samples(self, dtype, workers, size):
        samples = make(dtype)
        assert_alike(samples, workers, batch_size=size)
        assert_alike([{"a": one, "b": (one, 1)} for one in samples], workers, batch_size=size)
        assert_alike([one[0] for one in samples], workers, batch_size=size)

    @pytest.mark.parametrize("function", [torch.stack, list, tuple, lambda batch: {"x": (batch[0], "a")}])
    def test_results_of_a_collate_fn(self, dtype, workers, function):
        assert_alike(make(dtype), workers, batch_size=2, collate_fn=function)

    def test_a_dataset_of_tensors(self, dtype, workers):
        tensors = torch.stack(make(dtype)), torch.arange(4)
        theirs = list(Theirs(torch.utils.data.TensorDataset(*tensors), 2))
        for kind in (TensorDataset, torch.utils.data.TensorDataset):
            assert same(list(DataLoader(kind(*tensors), 2, **workers)), theirs)

    @pytest.mark.parametrize("names", [{}, {"name": list("abcd")}], ids=["numbers", "text"])
    @pytest.mark.parametrize("form", [torch.stack, list], ids=["tensor", "list"])
    def test_columns_of_a_table(self, dtype, workers, names, form):
        """As those of PyTorch's loader for the rows."""
        rows = make(dtype)
        columns = {"x": form(rows), **names}
        theirs = list(Theirs([{name: held[row] for name, held in columns.items()} for row in range(4)], 3))
        own_code = Made(lambda index: dict(TableDataset(columns)[index]), 4)
        for table in (columns, TableDataset(columns), own_code):
            assert same(list(DataLoader(table, 3, **workers)), theirs)


class TestColumns:
    @pytest.mark.parametrize("dtype", LACKING)
    def test_dtypes_that_numpy_lacks_stay_tensors(self, dtype):
        rows = torch.stack(make(dtype))
        for column in (rows, list(rows)):
            table = TableDataset({"x": column, "y": range(4)})
            assert same(table[1]["x"], rows[1])
            assert same(table[[2, 0]]["x"], rows[[2, 0]])
            assert same(table[1:3]["x"], rows[1:3])
            assert same(pickle.loads(pickle.dumps(table))[-1]["x"], rows[3])
        table = TableDataset({"x": rows})
        rows[1] = rows[2]  # the table shares its memory
        assert same(table[1]["x"], rows[2])

    def test_tokens_are_numbers_of_numpy(self):
        problem = r"tokens must be one dimension of numbers, got .* torch\.bfloat16"
        with pytest.raises(TypeError, match=problem):
            gpuloader.TokenWindows(torch.zeros(4, dtype=torch.bfloat16), 2)
        assert gpuloader.TokenWindows(torch.arange(4), 2)[1].tolist() == [2, 3]

    @pytest.mark.parametrize(
        ("make_tensor", "advice"),
        [
            (SPECIAL["sparse"], "a tensor of layout torch.sparse_coo; pass tensor.to_dense()"),
            (SPECIAL["quantized"], "a quantized tensor; pass tensor.dequantize()"),
            (lambda: torch.zeros(2, device="meta"), "a tensor on meta; pass tensor.cpu()"),
            (lambda: torch.nested.nested_tensor([torch.ones(2)]), "a nested tensor; pass tensor.unbind()"),
        ],
        ids=["sparse", "quantized", "meta", "nested"],
    )
    def test_tensors_that_are_no_column(self, make_tensor, advice):
        problem = re.escape(f"expected a dense tensor in host memory, got {advice}")
        with pytest.raises(DataFileError, match=f"column 'x': {problem}"):
            TableDataset({"x": make_tensor()})
        with pytest.raises(
            TypeError, match=f"array 0: cannot make an array of numbers from Tensor: {problem}"
        ):
            TensorDataset(make_tensor())


@by_workers
class TestViews:
    NUMBERS = torch.tensor([1 + 2j, 3 + 4j])

    @pytest.mark.parametrize("size", [2, None], ids=str)
    @pytest.mark.parametrize("function", [None, list], ids=str)
    def test_conjugates_and_negatives(self, workers, size, function):
        if size is None and function:
            function = tuple
        for view in (self.NUMBERS.conj(), self.NUMBERS.conj().imag):
            assert_alike([view] * 4, workers, batch_size=size, collate_fn=function)

    def test_in_a_dataset_of_tensors(self, workers):
        conjugates = self.NUMBERS.conj(), self.NUMBERS.conj().imag
        theirs = list(Theirs(torch.utils.data.TensorDataset(*conjugates), 2))
        assert same(list(DataLoader(TensorDataset(*conjugates), 2, **workers)), theirs)
        [batch] = DataLoader({"c": conjugates[0]}, 2, **workers)
        assert batch["c"].tolist() == [1 - 2j, 3 - 4j]

    def test_transposed_expanded_and_empty(self, workers):
        for view in (torch.arange(12).view(3, 4).t(), torch.ones(1).expand(3), torch.empty(0, 3)):
            assert_alike([view] * 4, workers, batch_size=2)


WEIGHTS = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
SAMPLES = {
    "leaf": lambda: torch.ones(2, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "result": lambda: torch.ones(2, requires_grad=True) * 1,
}
DETACHED = pytest.mark.filterwarnings("ignore:a tensor that requires a gradient:UserWarning")


def repeated(sample):
    return Made(lambda index: sample, 4)


class TestGradientsOfSamples:
    """A loader copies values: a gradient stays behind, with a warning."""

    @DETACHED
    @by_workers
    @pytest.mark.parametrize("kind", SAMPLES)
    def test_values_are_delivered(self, workers, kind):
        sample = SAMPLES[kind]()
        expected = list(Theirs([sample.detach()] * 4, 2))
        assert same(list(DataLoader(repeated(sample), 2, **workers)), expected)

    @pytest.mark.parametrize("kind", SAMPLES)
    def test_a_warning_says_so_once_and_single_samples_keep_it(self, kind):
        sample = SAMPLES[kind]()
        for dataset in (repeated(sample), [{"x": sample}] * 4):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("default")
                list(DataLoader(dataset, 2))
            [message] = [str(one.message) for one in found]
            assert re.search(r"requires a gradient is delivered without it.*tensor.detach\(\)", message)
        assert all(one is sample for one in DataLoader(repeated(sample), batch_size=None))

    def test_rows_of_a_tensor_dataset_keep_it_and_batches_and_columns_do_not(self):
        dataset = TensorDataset(torch.stack([SAMPLES["leaf"]()] * 4), torch.arange(4))
        assert dataset[0][0].requires_grad
        assert dataset[[1, 2]][0].requires_grad
        with pytest.warns(UserWarning, match="requires a gradient"):
            loader = DataLoader(dataset, 2)
        assert not any(batch.requires_grad for batch, _ in loader)
        for column in (torch.stack, list):
            with pytest.warns(UserWarning, match="requires a gradient"):
                [batch] = DataLoader({"w": column([SAMPLES["leaf"]()] * 2)}, 2)
            assert batch["w"].tolist() == [[1, 1], [1, 1]]


def weigh(samples):
    return {"x": torch.stack(samples) * WEIGHTS, "count": len(samples), "plain": torch.stack(samples)}


def return_weights(samples):
    return WEIGHTS


ONES = [torch.ones(2)] * 4


class TestGradientsOfResults:
    """What a collate_fn returns is the user's own, as long as it stays in the process."""

    IN_PROCESS = pytest.mark.parametrize("workers", [WORKERS[0], WORKERS[2]], ids=["inline", "threads"])

    @IN_PROCESS
    def test_they_lead_back_as_in_pytorch(self, workers):
        for kind, options in ((DataLoader, workers), (Theirs, {})):
            [batch] = kind(ONES, 4, collate_fn=weigh, **options)
            WEIGHTS.grad = None
            batch["x"].sum().backward()
            assert WEIGHTS.grad.tolist() == [4, 4]
            assert not batch["plain"].requires_grad
        WEIGHTS.grad = None

    @IN_PROCESS
    def test_they_are_the_functions_own_tensors(self, workers):
        [batch] = DataLoader([0, 1], 2, collate_fn=return_weights, **workers)
        assert batch is WEIGHTS
        found = [
            next(iter(kind([0, 1], 2, collate_fn=lambda batch: (WEIGHTS * 2, 1), **options)))
            for kind, options in ((DataLoader, workers), (Theirs, {}))
        ]
        assert [type(batch) for batch in found] == [tuple] * 2
        assert type(found[0][0].grad_fn) is type(found[1][0].grad_fn)

    @pytest.mark.parametrize("batch_size", [2, None])
    def test_an_iterable_dataset(self, batch_size):
        loader = DataLoader(iter(ONES), batch_size, collate_fn=lambda batch: (WEIGHTS * 2, batch))
        assert all(batch[0].requires_grad for batch in loader)

    @DETACHED
    @pytest.mark.parametrize("start_method", ["fork", "forkserver"])
    def test_workers_deliver_their_values(self, start_method, shared_server):
        """PyTorch's loader waits forever for the first of these; a leaf arrives as a leaf of its own."""
        options = {"num_workers": 1, "start_method": start_method}
        [batch] = DataLoader(ONES, 4, collate_fn=weigh, **options)
        assert batch["x"].tolist() == [[2, 3]] * 4
        assert not batch["x"].requires_grad
        [batch] = DataLoader([0, 1], 2, collate_fn=return_weights, **options)
        assert (type(batch), batch.requires_grad) == (type(WEIGHTS), True)

    def test_other_outputs_deliver_their_values_with_a_warning(self):
        with pytest.warns(UserWarning, match="requires a gradient"):
            [batch] = gpuloader.DataLoader(ONES, places="cpu", batch_size=4, collate_fn=weigh)
        assert batch["x"].tolist() == [[2, 3]] * 4


@by_workers
class TestTensorsThatAreNotDense:
    @pytest.mark.parametrize("kind", SPECIAL)
    def test_a_collate_fn_hands_them_through(self, workers, kind):
        samples = [SPECIAL[kind]() for _ in range(4)]
        assert_alike(samples, workers, batch_size=2, collate_fn=list)

    def test_nested_ones(self, workers):
        ragged = [torch.arange(2.0), torch.arange(3.0)]
        for layout in (torch.strided, torch.jagged):
            nest = functools.partial(torch.nested.nested_tensor, layout=layout)
            [batch] = DataLoader(ragged, 2, collate_fn=nest, **workers)
            assert batch.is_nested
            assert [one.tolist() for one in batch.unbind()] == [[0, 1], [0, 1, 2]]

    def test_stacking_them_is_an_error_that_says_what_to_do(self, workers):
        samples = [torch.nested.nested_tensor([torch.ones(2)])] * 2
        with pytest.raises(RuntimeError, match="collate_fn"):
            list(DataLoader(samples, 2, **workers))


@pytest.mark.parametrize("dtype", LACKING)
def test_other_outputs_say_what_to_do(dtype):
    for dataset in (make(dtype), {"x": torch.stack(make(dtype))}):
        for output in (None, "numpy"):
            with pytest.raises(LoaderError, match=f"torch.{dtype} .*pass output='torch'"):
                list(gpuloader.DataLoader(dataset, batch_size=2, places="cpu", output=output))


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    samples = [np.ones(3, ml_dtypes.bfloat16) * index for index in range(2)]
    [batch] = DataLoader(samples, 2)
    assert same(batch, torch.tensor([[0, 0, 0], [1, 1, 1]], dtype=torch.bfloat16))


class TestTensorsOfADataset:
    """A worker's copy of a dataset shares the memory of its tensors, as of its arrays."""

    @pytest.mark.parametrize("dtype", [*DTYPES, "float32"])
    def test_they_are_pickled_without_their_numbers(self, dtype):
        tensor = torch.zeros(1000, 300).to(getattr(torch, dtype))
        for one in (tensor, tensor.t(), tensor[::2], tensor[0].expand(500, 300)):
            sink = io.BytesIO()
            contents = dump({"images": one}, sink)
            assert len(sink.getvalue()) < 2000
            assert "torch" in contents.modules
            sink.seek(0)
            memory = [bytearray(one.tobytes("A")) for one in contents.memory]
            assert same(pickle.load(sink, buffers=memory)["images"], one)

    def test_what_is_more_than_numbers_is_pickled_as_torch_does(self):
        named = torch.ones(2)
        named.origin = "weights"
        for one in (torch.nn.Parameter(torch.ones(2)), torch.eye(2).to_sparse(), named):
            sink = io.BytesIO()
            assert not dump(one, sink).memory
            sink.seek(0)
            back = pickle.load(sink)
            assert type(back) is type(one)
            assert vars(back) == vars(one)
            assert back.requires_grad == one.requires_grad
            assert back.layout == one.layout

    def test_workers_write_to_copies(self):
        images = torch.zeros(1000, 100)
        loader = DataLoader(Made(functools.partial(write, images), 4), 2, num_workers=1)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        assert not images.any()


def write(images, index):
    images[index] += index
    return images[index, 0]


@by_workers
class TestStructures:
    def test_single_values(self, workers):
        for value in (3, 2.5, True, "a", b"a", None, 1 + 2j, 2**70, np.float32(1), np.str_("a")):
            assert_alike([value] * 2, workers, batch_size=None)

    def test_batches_of_one_may_all_differ(self, workers):
        samples = [1, 2.5, "a", torch.ones(3), torch.ones(2), {"a": 1}, {"b": 2.0}, [1, torch.ones(1)]]
        assert_alike(samples, workers, batch_size=1)
        buckets = [[0, 0], [3, 3, 3], [4, 4], [5, 5], [6, 6], [3, 3], [0]]
        assert_alike(samples, workers, batch_sampler=buckets)


REAL = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-3, 300),
    st.floats(width=32),
    st.sampled_from([1e300, 2.0**53 + 2, 0.1, float("nan"), float("inf")]),
    st.complex_numbers(max_magnitude=4, allow_subnormal=False),
    st.booleans(),
)


@st.composite
def values(draw):
    """Draw a number, alone or twice in an array or tensor, of any dtype that can hold something like it."""
    number = draw(NUMBERS)
    form = draw(st.sampled_from(["python", "numpy", "array", "tensor"]))
    if form == "python":
        return number
    kinds = ["complex64", "complex128"] if isinstance(number, complex) else [*REAL, "bool", "complex64"]
    kind = draw(st.sampled_from(kinds if form != "tensor" else [*kinds, *LACKING]))
    with np.errstate(all="ignore"), torch.no_grad():
        wide = np.asarray(number).astype("complex128" if isinstance(number, complex) else "float64")
        if form == "tensor":
            tensor = torch.from_numpy(wide).to(getattr(torch, kind))
            return draw(st.sampled_from([tensor, tensor.expand(2)]))
        array = wide.astype(kind) if kind.startswith("c") else wide.real.astype(kind)
        return array[()] if form == "numpy" else draw(st.sampled_from([array, np.repeat(array, 2)]))


def exact(value):
    """Return the numbers of a value as Python's, in a form in which NaN equals itself."""
    if isinstance(value, torch.Tensor):
        if value.dtype.is_complex:
            value = value.to(torch.complex128)
        elif value.dtype.is_floating_point:
            value = value.to(torch.float64)
        value = value.tolist()
    elif isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [exact(one) for one in value]
    if isinstance(value, complex) and not value.imag and value.imag == value.imag:
        value = value.real
    return "nan" if value != value else value


@pytest.mark.filterwarnings("ignore")
@given(st.lists(values(), min_size=2, max_size=3))
def test_no_number_is_lost(samples):
    """A batch is PyTorch's; or it has the first sample's dtype and every number; or it is an error."""
    theirs, refused, raised = None, None, None
    try:
        theirs = default_collate(samples)
    except Exception as error:
        refused = type(error)
    try:
        [ours] = DataLoader(samples, len(samples))
    except Exception as error:
        raised = error
    if raised is not None:
        assert isinstance(raised, LoaderError) or type(raised) is refused
        first, *others = samples
        alike = all(
            type(one) is type(first)
            and getattr(one, "dtype", None) == getattr(first, "dtype", None)
            and getattr(one, "shape", None) == getattr(first, "shape", None)
            for one in others
        )
        assert theirs is None or not alike
        return
    if theirs is None or not same(ours, theirs):
        assert exact(ours) == [exact(one) for one in samples]
        [alone] = DataLoader(samples[:1], 1)
        assert ours.dtype in (alone.dtype, getattr(theirs, "dtype", None))
