"""The planned runs, their comparison, and the files written from them."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from gpuloader import CPUPlace
from gpuloader.demo.comparison import Plan, are_equal, group_runs, plan_runs, write_runs
from gpuloader.demo.linear import LinearModel
from gpuloader.demo.training import train
from gpuloader.sources import mnist


@pytest.fixture(scope="module")
def runs():
    digits = mnist.sample().valid
    return {
        plan: train(digits, CPUPlace(), epochs=2, asynchronous=plan.way == "asynchronous")
        for plan in plan_runs(None, 2, 0.001, len(digits))
    }


def test_one_way_is_one_run_that_waits_if_it_is_told_to():
    assert plan_runs("synchronous", 4, 0.0, 100) == [Plan("as it is", "synchronous", 4, 0.0)]
    assert plan_runs("asynchronous", 4, 0.1, 100) == [Plan("with waits", "asynchronous", 4, 0.1)]


def test_runs_are_grouped_by_what_is_compared(runs):
    groups = group_runs(runs)
    assert {title: list(ways) for title, ways in groups.items()} == {
        "as it is": ["synchronous", "asynchronous"],
        "with waits": ["synchronous", "asynchronous"],
    }


def test_runs_are_equal_to_the_last_bit_or_not_at_all(runs):
    one, other, *_ = runs.values()
    assert are_equal([one, other])
    assert are_equal([one])
    losses = other.losses.copy()
    losses[-1] = np.nextafter(losses[-1], np.float32(99))
    assert not are_equal([one, replace(other, losses=losses)])
    assert not are_equal([one, replace(other, losses=losses[:-1])])
    model = LinearModel()
    model.weight, model.bias = other.model.weight, np.nextafter(other.model.bias, np.float32(99))
    assert not are_equal([one, replace(other, model=model)])


def test_losses_parameters_and_a_picture_are_written(runs, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert write_runs(group_runs(runs), tmp_path) == ["parameters.npz", "losses.npz", "timeline.png"]
    first = next(iter(runs.values()))
    with np.load(tmp_path / "losses.npz") as losses:
        np.testing.assert_array_equal(losses["synchronous"], first.losses)
        np.testing.assert_array_equal(losses["asynchronous"], first.losses)
    np.testing.assert_array_equal(LinearModel.load(tmp_path / "parameters.npz").weight, first.model.weight)
    assert (tmp_path / "timeline.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_matplotlib_there_is_no_picture(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert write_runs(group_runs(runs), tmp_path) == ["parameters.npz", "losses.npz"]
    assert not (tmp_path / "timeline.png").exists()
