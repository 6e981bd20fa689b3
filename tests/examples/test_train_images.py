"""The example that trains on images, run for real for a few steps; it resumes to the bit."""

import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import launching

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = Path(__file__).parents[2] / "examples" / "train_images.py"
SMALL = ("--made", 60, "--batch", 8, "--size", 32)


def run(*arguments):
    return launching.run(SCRIPT, *SMALL, *arguments)


def run_here(monkeypatch, *arguments):
    """Run the example in this process, which has imported torch already."""
    monkeypatch.setattr(sys, "argv", list(map(str, ["train_images.py", *SMALL, *arguments])))
    runpy.run_path(str(SCRIPT), run_name="__main__")


def weights(path):
    saved = torch.load(path, weights_only=True)
    return torch.cat([one.flatten().double() for one in saved["model"].values()])


def test_it_trains_validates_and_tells_what_limits_it():
    shown = run("--epochs", 2, "--scaled", "--amp", "--decode-there")
    lines = [line for line in shown.splitlines() if line.startswith("epoch ")]
    pattern = r"epoch \d: loss [\d.]+, [\d.]+% of 3 classes right; [\d,]+ images/s; \w+"
    assert len(lines) == 2
    assert all(re.match(pattern, line) for line in lines), lines


def test_it_resumes_in_the_middle_of_an_epoch(tmp_path):
    run("--epochs", 1, "--checkpoint", tmp_path / "whole.pt")
    run("--stop-after", 2, "--checkpoint", tmp_path / "half.pt")
    run("--epochs", 1, "--resume", tmp_path / "half.pt", "--workers", 0, "--checkpoint", tmp_path / "both.pt")
    torch.testing.assert_close(
        weights(tmp_path / "both.pt"), weights(tmp_path / "whole.pt"), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_it_with_a_checkpoint_that_continues(number, tmp_path):
    last, whole = tmp_path / "last.pt", tmp_path / "whole.pt"
    command = [sys.executable, SCRIPT, *SMALL, "--epochs", 40, "--checkpoint", last]
    with subprocess.Popen(
        list(map(str, command)), env=launching.environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("epoch 0: ")
        process.send_signal(number)
        [*_, stopped] = process.stdout.read().splitlines()
    assert process.returncode == 0
    epoch = int(re.fullmatch(rf"stopped by {number.name} in epoch (\d+)", stopped)[1])
    run("--epochs", epoch + 2, "--checkpoint", last, "--resume", last)
    run("--epochs", epoch + 2, "--checkpoint", whole)
    torch.testing.assert_close(weights(last), weights(whole), rtol=1e-3, atol=1e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "whole.pt"]


def test_an_epoch_that_is_over_is_neither_trained_nor_shown(tmp_path, monkeypatch, capsys):
    steps = 60 * 4 // 5 // 8
    run_here(monkeypatch, "--stop-after", steps, "--checkpoint", tmp_path / "end.pt")
    capsys.readouterr()
    run_here(monkeypatch, "--resume", tmp_path / "end.pt", "--epochs", 2, "--stop-after", 1)
    shown = capsys.readouterr().out
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
def test_options_that_cannot_work_end_with_a_clear_message(arguments, problem, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        run_here(monkeypatch, *arguments)
    assert problem in f"{caught.value} {capsys.readouterr().err}"
