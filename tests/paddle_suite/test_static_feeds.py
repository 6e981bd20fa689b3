"""A feed list of what Paddle's own ``paddle.static.data`` returns, as Paddle's pages have it."""

import numpy as np
import pytest

import gpuloader
from gpuloader import DataFeeder, DataLoader, SampleError
from gpuloader.transforms import Normalize

paddle = pytest.importorskip("paddle")


@pytest.fixture
def feeds():
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program()):
            yield [paddle.static.data("x", [None, 2], "float32"), paddle.static.data("y", [-1, 1], "int64")]
    finally:
        paddle.disable_static()


SAMPLES = [([0.5, 1.5], 3), ([2.5, 3.5], 4)]


def test_loaders_and_feeders_take_them(feeds):
    [[batch]] = DataLoader(SAMPLES, feeds, "cpu", batch_size=2, return_list=False)
    assert [(name, held.dtype, held.shape) for name, held in batch.items()] == [
        ("x", np.float32, (2, 2)),
        ("y", np.int64, (2, 1)),
    ]
    loader = DataLoader.from_generator(feeds, capacity=2, return_list=True)
    loader.set_sample_list_generator(lambda: iter([SAMPLES]), places="cpu")
    [[[x, y]]] = loader
    assert (x.tolist(), y.tolist()) == ([[0.5, 1.5], [2.5, 3.5]], [[3], [4]])
    assert DataFeeder(feeds, "cpu").feed(SAMPLES)["y"].tolist() == [[3], [4]]


def test_what_no_call_declared_and_a_dtype_that_numpy_lacks_are_refused(feeds):
    problem = r"gpuloader\.data or paddle\.static\.data, or their names, got \w+"
    for entry in (feeds[0] + 1, 5, paddle.static.Program()):
        with pytest.raises(TypeError, match=problem):
            DataLoader(SAMPLES, [entry], "cpu")
    with pytest.raises(ValueError, match="feed 'z': 'bfloat16' is not a dtype"):
        DataLoader(SAMPLES, [paddle.static.data("z", [None], "bfloat16")], "cpu")


def test_names_and_feeds_of_both_mix(feeds):
    declared = gpuloader.data("z", [None], "float32")
    [batch] = next(iter(DataLoader([(1, 2.0)], [feeds[1], declared], "cpu", return_list=False)))
    assert list(batch) == ["y", "z"]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("setter", ["sample", "batch"])
def test_a_tensor_whose_dtype_numpy_lacks_does_not_become_its_bits(declared, setter):
    tensor = paddle.ones([2], "bfloat16")
    loader = DataLoader.from_generator([gpuloader.data("x", [None, 2])] if declared else None, capacity=2)
    if setter == "sample":
        loader.set_sample_generator(lambda: iter([(tensor,)]), batch_size=1, places="cpu")
    else:
        loader.set_batch_generator(lambda: iter([(tensor.unsqueeze(0),)]), places="cpu")
    with pytest.raises(SampleError, match=r"got paddle.bfloat16; pass x.astype\('float32'\)"):
        list(loader)
    for name in ("float32", "bool", "int8", "complex64"):
        [found] = DataLoader([paddle.ones([2]).astype(name)], places="cpu")
        assert (found.dtype, found.tolist()) == (name, [[1, 1]])


def test_its_tensors_have_no_strides_for_channels_last():
    steps = [Normalize("0", to="channels_last")]
    with pytest.raises(ValueError, match="to='channels_last' needs arrays with strides"):
        DataLoader([np.zeros((2, 2, 3), "uint8")], places="cpu", output="paddle", transforms=steps)
