"""The example that trains on images, run for real for a few steps; it resumes to the bit."""

import builtins
import os
import re
import signal
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
SMALL = ("--made", 60, "--batch", 8, "--size", 32)


@pytest.fixture
def train(run):
    return partial(run, "train_images", *SMALL)


def weights(path):
    saved = torch.load(path, weights_only=True)
    return torch.cat([one.flatten().double() for one in saved["model"].values()])


def test_it_trains_validates_and_tells_what_limits_it(train):
    shown = train("--epochs", 2, "--scaled", "--amp", "--decode-there")
    lines = [line for line in shown.splitlines() if line.startswith("epoch ")]
    pattern = r"epoch \d: loss [\d.]+, [\d.]+% of 3 classes right; [\d,]+ images/s; \w+"
    assert len(lines) == 2
    assert all(re.match(pattern, line) for line in lines), lines


def test_it_resumes_in_the_middle_of_an_epoch(train, tmp_path):
    whole, half, both = (tmp_path / f"{name}.pt" for name in ("whole", "half", "both"))
    train("--epochs", 1, "--checkpoint", whole)
    train("--stop-after", 2, "--checkpoint", half)
    train("--epochs", 1, "--resume", half, "--workers", 0, "--checkpoint", both)
    torch.testing.assert_close(weights(both), weights(whole), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_it_with_a_checkpoint_that_continues(number, train, tmp_path, monkeypatch):
    last, whole = tmp_path / "last.pt", tmp_path / "whole.pt"

    def show(text, show=print, **options):
        show(text, **options)
        if text.startswith("epoch 0: "):
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "print", show)
        [*_, stopped] = train("--epochs", 40, "--checkpoint", last).splitlines()
    assert stopped == f"stopped by {number.name} in epoch 1"
    train("--epochs", 3, "--checkpoint", last, "--resume", last)
    train("--epochs", 3, "--checkpoint", whole)
    torch.testing.assert_close(weights(last), weights(whole), rtol=1e-3, atol=1e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "whole.pt"]


def test_an_epoch_that_is_over_is_neither_trained_nor_shown(train, tmp_path):
    steps = 60 * 4 // 5 // 8
    train("--stop-after", steps, "--checkpoint", tmp_path / "end.pt")
    shown = train("--resume", tmp_path / "end.pt", "--epochs", 2, "--stop-after", 1)
    assert re.findall(r"epoch (\d): loss ([a-z]+)?", shown) == [("1", "")]
    assert "; 1 step so far" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--made", 11, "--batch", 9], "has 8 images, fewer than one batch: pass --batch 8 or less"),
        (["--made", 1], "--made must be 11 or more"),
        (["--made", 0], "--made must be 11 or more"),
        (["--stop-after", 0], "--stop-after must be 1 or more"),
    ],
    ids=str,
)
def test_options_that_cannot_work_end_with_a_clear_message(arguments, problem, train, capsys):
    with pytest.raises(SystemExit) as caught:
        train(*arguments)
    assert problem in f"{caught.value} {capsys.readouterr().err}"
