"""The main job: equal losses both ways, and what the demonstration writes."""

import numpy as np
import pytest

from gpuloader import CPUPlace
from gpuloader.demo.__main__ import main
from gpuloader.demo.linear import LinearModel
from gpuloader.demo.training import train
from gpuloader.sources import mnist
from gpuloader.testing import simulated_places


def assert_equal(one, other):
    np.testing.assert_array_equal(one.losses, other.losses)
    np.testing.assert_array_equal(one.model.weight, other.model.weight)
    np.testing.assert_array_equal(one.model.bias, other.model.bias)


def test_three_epochs_of_the_full_file_are_equal_bit_for_bit(full_mnist):
    one, other = (train(full_mnist.train, CPUPlace(), epochs=3, asynchronous=way) for way in (False, True))
    assert len(one.losses) == 1500
    assert_equal(one, other)
    assert 20 < one.losses[0] < 30
    assert 3 < one.losses[400:500].mean() < 6


def test_three_epochs_of_the_sample_are_equal_bit_for_bit():
    digits = mnist.sample().train
    assert_equal(*(train(digits, CPUPlace(), epochs=3, asynchronous=way) for way in (False, True)))


def test_waiting_changes_nothing():
    digits = mnist.sample().valid
    plain = train(digits, CPUPlace(), epochs=1, asynchronous=True)
    slowed = train(digits, CPUPlace(), epochs=1, asynchronous=True, read_wait=0.001, compute_wait=0.001)
    assert_equal(plain, slowed)
    assert slowed.compute >= 5 * 0.001
    assert slowed.stats.fetch >= 5 * 0.001


def test_the_demonstration_says_that_losses_are_equal_and_writes_three_files(tmp_path, capsys):
    assert main(["--epochs", "1", "--wait", "0.1", "--output", str(tmp_path), "--place", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "equal, bit for bit" in printed
    assert "NO" not in printed
    losses = np.load(tmp_path / "losses.npz")
    np.testing.assert_array_equal(losses["synchronous"], losses["asynchronous"])
    assert LinearModel.load(tmp_path / "parameters.npz").weight.shape == (784, 1)
    assert (tmp_path / "timeline.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--data", "/nowhere/mnist.json.gz"], "No such file"), (["--place", "abacus"], "not a place")],
)
def test_what_cannot_be_done_is_said_without_a_traceback(arguments, message, tmp_path, capsys):
    assert main([*arguments, "--output", str(tmp_path)]) == 2
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--wait", "-1"], ["--epochs", "many"]])
def test_wrong_numbers_are_refused(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_the_simulated_device_reads_the_same_digits():
    from gpuloader import DataLoader

    reader = mnist.reader(mnist.sample().valid, seed=3)
    loader = DataLoader.from_generator(capacity=2, return_list=True)
    [place] = simulated_places(1)
    seen = [np.asarray(labels) for _, labels in loader.set_batch_generator(reader, places=place)]
    again = [labels for _, labels in mnist.reader(mnist.sample().valid, seed=3)()]
    np.testing.assert_array_equal(np.concatenate(seen), np.concatenate(again))
