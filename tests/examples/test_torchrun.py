"""The torchrun example, run for real: two processes sum their gradients and leave no process behind."""

import runpy
from types import SimpleNamespace

import pytest

from tests import launching
from tests.examples.conftest import EXAMPLES

torch = pytest.importorskip("torch")

SCRIPT = EXAMPLES / "torchrun_mnist.py"


def read(path):
    checkpoint = torch.load(path, weights_only=True)
    return torch.cat([weights.flatten() for weights in checkpoint["model"].values()]), checkpoint["loader"]


@pytest.fixture
def example(one_thread):
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """The final weights and state of a run with two processes."""
    path = tmp_path_factory.mktemp("run") / "two.pt"
    printed = launching.run(SCRIPT, "--checkpoint", path, processes=2, torchrun=True)
    assert "of the test digits, on 2 processes" in printed
    return read(path)


def test_two_processes_end_where_one_does(of_two, run, tmp_path):
    run("torchrun_mnist", "--checkpoint", tmp_path / "one.pt")
    weights, state = read(tmp_path / "one.pt")
    torch.testing.assert_close(weights, of_two[0], rtol=0, atol=2e-6)
    assert state == of_two[1] == {"version": 2, "epoch": 2, "seed": 1, "position": 0}


def test_they_are_the_sums_of_two_parts_to_the_bit(of_two, example):
    """Two processes compute the same as one that processes both parts of each batch in turn."""
    model = example.make_model()
    parts = [example.make_loader(32, shard=(rank, 2)) for rank in range(2)]
    for _ in range(2):
        for first, second in zip(*parts, strict=True):
            one, other = (example.sum_gradients(model, *part) for part in (first, second))
            example.take_step(model, one + other)
    weights = torch.cat([weights.detach().flatten() for weights in model.state_dict().values()])
    assert torch.equal(weights, of_two[0])


def test_one_process_goes_on_where_two_have_stopped(of_two, run, tmp_path):
    launching.run(SCRIPT, "--stop-after", 30, "--checkpoint", tmp_path / "half.pt", processes=2)
    _, state = read(tmp_path / "half.pt")
    assert state == {"version": 2, "epoch": 0, "seed": 1, "position": 30 * 64}
    run("torchrun_mnist", "--resume", tmp_path / "half.pt", "--checkpoint", tmp_path / "whole.pt")
    weights, _ = read(tmp_path / "whole.pt")
    torch.testing.assert_close(weights, of_two[0], rtol=0, atol=2e-6)


def test_the_gradients_of_repeated_digits_do_not_count(example):
    """4,000 digits in batches of 96 leave 64 for the last step: 22, 21 and 21 for the three ranks."""
    model = example.make_model()
    parts = [list(example.make_loader(32, shard=(rank, 3)))[-1] for rank in range(3)]
    [whole] = [list(example.make_loader(96, shard=(0, 1)))[-1]]
    assert [int(mask.sum()) for _, _, mask in parts] == [22, 21, 21]
    summed = sum(example.sum_gradients(model, *part) for part in parts)
    torch.testing.assert_close(summed, example.sum_gradients(model, *whole), rtol=0, atol=1e-4)
    assert summed[-1] == 64
