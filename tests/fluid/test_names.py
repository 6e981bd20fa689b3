"""The names of Paddle that enclose loading code: guards, variables, unique names, tensors with lengths."""

import numpy as np
import pytest

from gpuloader import CPUPlace, DataLoader, PlaceError, Ragged, SampleError, data, fluid
from gpuloader.devices import cuda
from gpuloader.devices.places import default_place
from gpuloader.testing import simulated_places
from tests.fakes import run_threads


class TestGuard:
    def test_loaders_inside_deliver_to_its_place(self):
        make, read = DataLoader.from_generator, lambda: [[np.ones((2, 3))]]
        with fluid.dygraph.guard(simulated_places(1)[0]):
            over_reader = make(capacity=2).set_batch_generator(read)
            over_dataset = DataLoader([np.ones(3)] * 2, batch_size=2)
            with_feeds = make([fluid.data("x", [None, 3])], capacity=2).set_batch_generator(read)
        [[one], [other], [step]] = over_reader, over_dataset, with_feeds
        assert {type(batch).__name__ for batch in (*one, other, step[0]["x"])} == {"SimulatedArray"}

    def test_guards_nest_and_hold_in_one_thread(self):
        [place] = simulated_places(1)
        elsewhere = []
        with fluid.dygraph.guard(place):
            with fluid.dygraph.guard("cpu"):
                assert default_place() == CPUPlace()
            with fluid.dygraph.guard():
                assert default_place() is place
            run_threads(lambda: elsewhere.append(default_place()), 1)
        assert [default_place()] == elsewhere

    def test_an_unknown_or_missing_place_is_an_error_at_once(self):
        with pytest.raises(PlaceError, match="not a place: 'tpu'"), fluid.dygraph.guard("tpu"):
            pass
        if not fluid.is_compiled_with_cuda():
            with pytest.raises(PlaceError), fluid.dygraph.guard(fluid.CUDAPlace(0)):
                pass


class TestToVariable:
    def test_numpy_arrays_and_lists_are_copied(self):
        array = np.arange(3.0)
        variable = fluid.dygraph.to_variable(array)
        assert fluid.dygraph.to_variable(array, zero_copy=True) is array
        array[0] = 9
        assert variable.tolist() == [0, 1, 2]
        assert fluid.dygraph.to_variable([1, 2]).dtype == np.int64
        assert fluid.dygraph.to_variable((1, 2), dtype="float32").dtype == np.float32
        for value in (3, "text", None):
            with pytest.raises(TypeError, match="must be an array or a list"):
                fluid.dygraph.to_variable(value)

    def test_on_another_place_arrays_go_there_and_stay_there(self):
        with fluid.dygraph.guard(simulated_places(1)[0]):
            variable = fluid.dygraph.to_variable(np.arange(3.0), dtype="float32")
            assert type(variable).__name__ == "SimulatedArray"
            assert fluid.dygraph.to_variable(variable) is variable
        assert np.asarray(variable).tolist() == [0, 1, 2]


class TestCuda:
    @pytest.mark.parametrize("count", [0, 2])
    def test_the_number_of_gpus(self, monkeypatch, count):
        def require(index):
            if not count:
                raise PlaceError("there is none")
            return count

        monkeypatch.setattr(cuda, "require_cuda", require)
        assert fluid.is_compiled_with_cuda() is fluid.core.is_compiled_with_cuda() is bool(count)
        assert fluid.core.get_cuda_device_count() == count

    def test_pinned_places_count_as_cpu_places(self, monkeypatch):
        assert fluid.cuda_pinned_places(2) == [fluid.CUDAPinnedPlace()] * 2
        monkeypatch.setenv("CPU_NUM", "3")
        assert len(fluid.cuda_pinned_places()) == 3
        with pytest.raises(ValueError, match="device_count"):
            fluid.cuda_pinned_places(0)


WORDS = np.arange(4)[:, None]


class TestLoDTensor:
    """Beyond what `tests/paddle_suite/test_feeds.py` compares with Paddle's."""

    def test_lengths_must_fit(self):
        tensor = fluid.LoDTensor()
        tensor.set(WORDS, fluid.CPUPlace())
        for lengths in ([[3, 3]], [[2, 1], [3, 1]], [[5, -1]]):
            with pytest.raises(ValueError, match="expected lengths that sum to"):
                tensor.set_recursive_sequence_lengths(lengths)
        tensor.set_recursive_sequence_lengths([[2, 0], [3, 1]])
        with pytest.raises(ValueError, match="offsets must begin at 0"):
            tensor.set_lod([[1, 4]])
        assert tensor.has_valid_recursive_sequence_lengths()
        tensor.set(WORDS[:3], "cpu")
        assert not tensor.has_valid_recursive_sequence_lengths()

    def test_one_is_made_of_another(self):
        made = fluid.create_lod_tensor([[0, 1, 2], [3]], [[3, 1]], fluid.CPUPlace())
        again = fluid.create_lod_tensor(made, [[1, 3]], "cpu")
        assert np.array(again).tolist() == WORDS.tolist()
        assert np.array(again, dtype="float32").dtype == np.float32
        with pytest.raises(AssertionError, match="sequences of the lengths"):
            fluid.create_lod_tensor([[1, 2]], [[3]], "cpu")
        with pytest.raises(ValueError, match="sum to the 4 rows"):
            fluid.create_lod_tensor(WORDS, [[2, 1]], "cpu")
        with pytest.raises(TypeError, match="must be an array"):
            fluid.create_lod_tensor(3, [[1]], "cpu")

    def test_a_generator_of_batches_may_yield_it(self):
        """Without lengths, it is delivered as it is; the other feeds have another first dimension."""
        feeds = [data("words", [None, 1], "int64", lod_level=1), data("label", [None, 1], "int64")]
        loader, labels = DataLoader.from_generator(feeds, capacity=2), np.array([[7], [8]])
        words, dense = fluid.create_lod_tensor(WORDS, [[3, 1]], "cpu"), fluid.LoDTensor()
        dense.set(WORDS, "cpu")
        batches = [(words, labels), (WORDS, labels), (dense, labels)]
        [first], *others = loader.set_batch_generator(lambda: batches, places="cpu")
        assert isinstance(first["words"], Ragged)
        assert first["words"].recursive_sequence_lengths() == [[3, 1]]
        for [batch] in others:
            assert batch["words"].tolist() == WORDS.tolist()
            assert batch["label"].tolist() == [[7], [8]]
        loader.set_batch_generator(lambda: [(np.zeros((4, 2)), np.zeros((4, 1)))], places="cpu")
        with pytest.raises(SampleError, match=r"field 'words': expected shape \(-, 1\), got \(4, 2\)"):
            list(loader)


class TestLayersData:
    @pytest.mark.parametrize("shape", [[-1, 3], [None, 3], [3, -1], (8, None)])
    def test_a_free_dimension_adds_none(self, shape):
        free = tuple(None if size == -1 else size for size in shape)
        assert fluid.layers.data("x", shape).shape == free
        feed = fluid.layers.data("x", [3], True, "int64", 0, None, True)
        assert feed == fluid.layers.data(name="x", shape=[3], dtype="int64", type=7, stop_gradient=False)
        assert feed.shape == (None, 3)
        with pytest.raises(TypeError, match="prefix"), fluid.unique_name.guard(3):
            pass
