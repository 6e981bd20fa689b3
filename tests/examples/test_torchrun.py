"""The torchrun example, run for real: two processes sum their gradients and leave no process behind."""

import runpy
from itertools import islice
from types import SimpleNamespace

import pytest

from tests import launching
from tests.examples.conftest import EXAMPLES

torch = pytest.importorskip("torch")

SCRIPT = EXAMPLES / "torchrun_mnist.py"


def read(path):
    checkpoint = torch.load(path, weights_only=True)
    return torch.cat([weights.flatten() for weights in checkpoint["model"].values()]), checkpoint["loader"]


EXAMPLE = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """The checkpoint of one process after 30 steps, and the last weights and state of two that resume it."""
    folder = tmp_path_factory.mktemp("run")
    model, loader = EXAMPLE.make_model(), EXAMPLE.make_loader(64, shard=(0, 1))
    EXAMPLE.train(model, islice(iter(loader), 30))
    torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, folder / "half.pt")
    options = "--resume", folder / "half.pt", "--checkpoint", folder / "two.pt"
    printed = launching.run(SCRIPT, *options, processes=2, torchrun=True)
    assert "of the test digits, on 2 processes" in printed
    return folder / "half.pt", *read(folder / "two.pt")


def test_two_processes_that_resume_end_where_one_does(of_two, run, tmp_path):
    half, weights, state = of_two
    run("torchrun_mnist", "--stop-after", 30, "--checkpoint", tmp_path / "half.pt")
    begun, position = read(tmp_path / "half.pt")
    torch.testing.assert_close(begun, read(half)[0], rtol=0, atol=2e-6)
    assert position == read(half)[1] == {"version": 2, "epoch": 0, "seed": 1, "position": 30 * 64}
    run("torchrun_mnist", "--checkpoint", tmp_path / "one.pt")
    whole, ended = read(tmp_path / "one.pt")
    torch.testing.assert_close(whole, weights, rtol=0, atol=2e-6)
    assert ended == state == {"version": 2, "epoch": 2, "seed": 1, "position": 0}


@pytest.mark.usefixtures("one_thread")
def test_they_are_the_sums_of_two_parts_to_the_bit(of_two):
    """Two processes compute the same as one that processes both parts of each batch in turn."""
    half = torch.load(of_two[0], weights_only=True)
    model = EXAMPLE.make_model()
    model.load_state_dict(half["model"])
    parts = [EXAMPLE.make_loader(32, shard=(rank, 2)) for rank in range(2)]
    for part in parts:
        part.load_state_dict(half["loader"])
    for _ in range(2):
        for first, second in zip(*parts, strict=True):
            one, other = (EXAMPLE.sum_gradients(model, *part) for part in (first, second))
            EXAMPLE.take_step(model, one + other)
    weights = torch.cat([weights.detach().flatten() for weights in model.state_dict().values()])
    assert torch.equal(weights, of_two[1])


@pytest.mark.usefixtures("one_thread")
def test_the_gradients_of_repeated_digits_do_not_count():
    """4,000 digits in batches of 96 leave 64 for the last step: 22, 21 and 21 for the three ranks."""
    model = EXAMPLE.make_model()
    parts = [list(EXAMPLE.make_loader(32, shard=(rank, 3)))[-1] for rank in range(3)]
    [whole] = [list(EXAMPLE.make_loader(96, shard=(0, 1)))[-1]]
    assert [int(mask.sum()) for _, _, mask in parts] == [22, 21, 21]
    summed = sum(EXAMPLE.sum_gradients(model, *part) for part in parts)
    torch.testing.assert_close(summed, EXAMPLE.sum_gradients(model, *whole), rtol=0, atol=1e-4)
    assert summed[-1] == 64
