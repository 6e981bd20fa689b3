"""The linear model: what it learns, on which device, and what it stores."""

import sys
from types import ModuleType

import numpy as np
import pytest

from gpuloader.demo.training import LinearModel
from gpuloader.sources import mnist


def train(digits, *, flat_labels, epochs=1):
    model = LinearModel(seed=0)
    read = mnist.reader(digits, batch_size=100, seed=0, flat_labels=flat_labels)
    return [float(model.step(images, labels)) for _ in range(epochs) for images, labels in read()]


def some_batch(count=6):
    chance = np.random.default_rng(2)
    labels = chance.integers(0, 10, (count, 1)).astype(np.float32)
    return chance.random((count, 784), np.float32), labels


def test_the_trap_shows_on_the_sample_as_well():
    digits = mnist.sample().train
    assert np.mean(train(digits, flat_labels=False, epochs=12)[-40:]) < 6
    assert np.mean(train(digits, flat_labels=True, epochs=12)[-40:]) > digits.labels.var() > 7


@pytest.mark.parametrize("flat", [False, True])
def test_the_step_goes_down_the_measured_slope(flat):
    images, labels = some_batch()
    if flat:
        labels = labels.ravel()
    rate = 1e-3
    model = LinearModel(learning_rate=rate)
    before, bias = model.weight.astype(np.float64), model.bias.astype(np.float64)

    def loss(weight, bias):
        return float(np.mean((images.astype(np.float64) @ weight + bias - labels) ** 2))

    assert float(model.step(images, labels)) == pytest.approx(loss(before, bias), rel=1e-4)
    for pixel in (0, 400, 783):
        nudge = np.zeros_like(before)
        nudge[pixel] = 1e-4
        slope = (loss(before + nudge, bias) - loss(before - nudge, bias)) / 2e-4
        assert model.weight[pixel, 0] == pytest.approx(before[pixel, 0] - rate * slope, abs=1e-5)
    slope = (loss(before, bias + 1e-4) - loss(before, bias - 1e-4)) / 2e-4
    assert model.bias[0] == pytest.approx(-rate * slope, abs=1e-5)


def test_parameters_stay_float32_and_begin_equal_for_one_seed():
    model, twin = LinearModel(seed=4), LinearModel(seed=4)
    np.testing.assert_array_equal(model.weight, twin.weight)
    assert not np.array_equal(model.weight, LinearModel(seed=5).weight)
    assert model.step(*some_batch()).dtype == np.float32
    assert model.weight.dtype == model.bias.dtype == np.float32


class DeviceArray(np.ndarray):
    """An array of another library, `deviceless`, that refuses implicit conversion to NumPy."""

    __module__ = "deviceless"

    def get(self):
        return np.array(self.view(np.ndarray))


def test_parameters_follow_the_library_of_the_batch(monkeypatch, tmp_path):
    library = ModuleType("deviceless")
    library.asarray = lambda array: np.asarray(array).view(DeviceArray)
    monkeypatch.setitem(sys.modules, "deviceless", library)
    images, labels = some_batch()
    model, host_model = LinearModel(), LinearModel()
    for _ in range(3):
        loss = model.step(library.asarray(images), library.asarray(labels))
        expected = host_model.step(images, labels)
    assert isinstance(model.weight, DeviceArray)
    assert isinstance(model.bias, DeviceArray)
    assert float(loss) == pytest.approx(float(expected))
    model.save(tmp_path / "model")
    with np.load(tmp_path / "model") as saved:
        np.testing.assert_array_equal(saved["weight"], host_model.weight)
        np.testing.assert_array_equal(saved["bias"], host_model.bias)
        assert saved["learning_rate"] == 0.001


def test_images_of_another_shape_and_rates_that_are_not_positive_are_refused():
    for shape in ((2, 28, 28), (784,), (0, 784), (2, 100)):
        with pytest.raises(ValueError, match="784"):
            LinearModel().step(np.zeros(shape, np.float32), np.zeros((2, 1), np.float32))
    for rate in (0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="learning_rate"):
            LinearModel(learning_rate=rate)
