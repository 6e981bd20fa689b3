"""Feeds and feeders: the cases of Paddle's test_data_feeder.py, test_data.py and test_lod_tensor.py."""

import numpy as np
import pytest

from tests.paddle_suite.libraries import array, rows


@pytest.fixture(autouse=True)
def static(lib):
    with lib.static():
        yield


def shape(value):
    return array(value).shape


def feeder_of(lib, dims, **options):
    return lib.fluid.DataFeeder([lib.data("x", dims, options.pop("dtype", "float32"), **options)], lib.cpu)


class TestFeeder:
    def test_a_wrong_width(self, lib):
        feeder = feeder_of(lib, [-1, 4])
        if lib.differs("widths-are-checked") or lib.version >= (3,):
            with pytest.raises(ValueError, match="4"):
                feeder.feed([([1, 2, 3],)])
        else:
            assert shape(feeder.feed([([1, 2, 3],)])["x"]) == (1, 3)

    def test_a_wrong_number_of_fields(self, lib):
        with pytest.raises(AssertionError, match=r"2.*1|1.*2"):
            feeder_of(lib, [-1, 1]).feed([(1, 2)])

    def test_names_of_the_current_and_of_another_program(self, lib):
        if lib.version >= (3,):
            pytest.skip("Paddle 3 takes no names")
        lib.data("q", [-1, 1], "float32")
        assert list(lib.fluid.DataFeeder(["q"], lib.cpu).feed([([1],)])) == ["q"]
        with pytest.raises(ValueError, match="nope"):
            lib.fluid.DataFeeder(["nope"], lib.cpu)
        program = lib.fluid.Program()
        with lib.fluid.program_guard(program, lib.fluid.Program()):
            lib.data("p", [-1, 1], "float32")
            assert lib.fluid.default_main_program() is program
        with pytest.raises(ValueError, match="p"):
            lib.fluid.DataFeeder(["p"], lib.cpu)
        assert list(lib.fluid.DataFeeder(["p"], lib.cpu, program).feed([([1],)])) == ["p"]
        assert program.global_block().has_var("p")


class TestFreeDimensions:
    """With two or more of them, Paddle does not reshape: the elements could be arranged in several ways."""

    @pytest.mark.parametrize("sample", [(56,), (2, 28), (2, 14, 2), ()])
    def test_two_leave_a_value_alone(self, lib, sample):
        assert shape(feeder_of(lib, [None, None, 28]).feed([(np.zeros(sample),)] * 2)["x"]) == (2, *sample)

    @pytest.mark.parametrize("sample", [(56,), (2, 28)])
    def test_one_is_found_out(self, lib, sample):
        assert shape(feeder_of(lib, [2, None, 28]).feed([(np.zeros(sample),)] * 2)["x"]) == (2, 2, 28)

    def test_a_fixed_dimension_is_checked_all_the_same(self, lib):
        feeder = feeder_of(lib, [None, None, 28])
        if lib.differs("widths-are-checked"):
            with pytest.raises(ValueError, match=r"\(-, 28\), got \(2, 27\)"):
                feeder.feed([(np.zeros((2, 27)),)])
        else:
            assert shape(feeder.feed([(np.zeros((2, 27)),)])["x"]) == (1, 2, 27)


@pytest.mark.parametrize("kind", ["sample", "sample_list", "batch"])
@pytest.mark.parametrize(
    ("declared", "width", "sizes"),
    [
        ([None, None, 28], 56, (2,)), ([-1, -1, -1], 56, (2,)),
        ([4, 3], 3, (4, 4)), ([4, 3], 3, (2, 2)), ([4, 3], 3, (4, 2)),
    ],
)  # fmt: skip
def test_neither_two_free_dimensions_nor_a_fixed_batch_dimension_are_checked(
    lib, kind, declared, width, sizes
):
    """One rule for the three setters; a program declares the size it was once written for."""
    if lib.version >= (3,) and kind == "sample_list":
        pytest.skip("Paddle 3 feeds the numbers of a list one by one")
    loader = lib.fluid.io.DataLoader.from_generator([lib.data("x", declared, "float32")], capacity=2)
    rows_of = lambda size: [(np.ones(width),)] * size  # noqa: E731
    if kind == "sample":
        loader.set_sample_generator(lambda: iter(rows_of(sum(sizes))), sizes[0], False, places=lib.cpu)
    elif kind == "sample_list":
        loader.set_sample_list_generator(lambda: map(rows_of, sizes), places=lib.cpu)
    else:
        loader.set_batch_generator(lambda: ([np.ones((size, width))] for size in sizes), places=lib.cpu)
    assert [shape(step[0]["x"]) for step in loader] == [(size, width) for size in sizes]


class TestDeclaring:
    def test_dtypes(self, lib):
        passed = [(), (None,), ("bool",), ("int64",), ("float64",), ("uint8",)]
        found = [lib.data(f"c{number}", [2, 25], *dtype).dtype for number, dtype in enumerate(passed)]
        names = [str(dtype).rpartition(".")[2].lower() for dtype in found]
        assert names == ["float32", "float32", "bool", "int64", "float64", "uint8"]

    def test_names_are_text_and_shapes_are_lists_and_a_number_is_no_feed(self, lib):
        refused = (lib.data, 1, [2, 25]), (lib.data, "d", 2), (lib.fluid.DataFeeder, [3], lib.cpu)
        for make, *arguments in refused:
            with pytest.raises(TypeError):
                make(*arguments)

    def test_none_and_minus_one_are_free(self, lib):
        shapes = [tuple(lib.data(name, dims).shape) for name, dims in (("e", [None, 3]), ("f", [-1, 3]))]
        assert shapes[0] == shapes[1]
        assert shapes[0][1:] == (3,)


class TestLengths:
    """Fields of varying length, which Paddle 2 keeps in LoDTensors and gpuloader in Ragged."""

    @pytest.fixture(autouse=True)
    def with_lengths(self, lib):
        if lib.version >= (3,):
            pytest.skip("Paddle 3 has no tensors with lengths")

    @pytest.mark.parametrize("words", [np.array([1, 2, 3]), np.array([[1], [2], [3]])])
    def test_arrays_of_steps(self, lib, words):
        feeder = lib.fluid.DataFeeder([lib.data("words", [-1, 1], "int64", lod_level=1)], lib.cpu)
        field = feeder.feed([(words,), (words[:1],)])["words"]
        assert rows(field.values if lib.name == "gpuloader" else field) == [[1], [2], [3], [1]]
        assert field.recursive_sequence_lengths() == [[3, 1]]

    def test_a_tensor_with_lengths(self, lib):
        tensor = lib.fluid.LoDTensor()
        tensor.set(np.arange(4)[:, None], lib.cpu)
        assert tensor.recursive_sequence_lengths() == tensor.lod() == []
        tensor.set_recursive_sequence_lengths([[3, 1]])
        assert (tensor.lod(), list(tensor.shape())) == ([[0, 3, 4]], [4, 1])
        tensor.set_lod([[0, 1, 4]])
        assert tensor.recursive_sequence_lengths() == [[1, 3]]
        assert tensor.has_valid_recursive_sequence_lengths()
        with pytest.raises(ValueError, match="3"):
            tensor.set_recursive_sequence_lengths([[3, 3]])

    @pytest.mark.parametrize("steps", [np.arange(5)[:, None], [[0, 1], [2, 3, 4]]])
    def test_create_lod_tensor(self, lib, steps):
        tensor = lib.fluid.create_lod_tensor(steps, [[2, 3]], lib.cpu)
        assert (list(tensor.shape()), tensor.recursive_sequence_lengths()) == ([5, 1], [[2, 3]])
        assert rows(tensor) == [[0], [1], [2], [3], [4]]


class TestNames:
    def test_unique_names(self, lib):
        names = lib.fluid.unique_name
        with names.guard():
            assert [names.generate(key) for key in ("fc", "fc", "x")] == ["fc_0", "fc_1", "x_0"]
            with names.guard():
                assert names.generate("fc") == "fc_0"
            with names.guard("A"):
                assert names.generate("fc") == "Afc_0"
            assert names.generate("fc") == "fc_2"

    def test_places(self, lib):
        assert len(lib.fluid.cpu_places(2)) == 2
        assert len(lib.fluid.cpu_places()) == 1
        if not lib.fluid.is_compiled_with_cuda():
            assert not lib.fluid.core.is_compiled_with_cuda()
