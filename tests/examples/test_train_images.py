"""The example that trains on pictures, run for real for a few steps; it resumes to the bit."""

import re
from pathlib import Path

import pytest

from tests import launching

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

SCRIPT = Path(__file__).parents[2] / "examples" / "train_images.py"
SMALL = ("--made", 60, "--batch", 8, "--size", 32)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Let torch compute in one thread: the model is too small for more."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(*arguments):
    return launching.run(SCRIPT, *SMALL, *arguments, processes=1)


def weights(path):
    saved = torch.load(path, weights_only=True)
    return torch.cat([one.flatten().double() for one in saved["model"].values()])


def test_it_trains_validates_and_tells_what_limits_it():
    shown = run("--epochs", 2, "--scaled", "--amp", "--decode-there")
    lines = [line for line in shown.splitlines() if line.startswith("epoch ")]
    pattern = r"epoch \d: loss [\d.]+, [\d.]+% of 3 classes right; [\d,]+ pictures/s; \w+"
    assert len(lines) == 2
    assert all(re.match(pattern, line) for line in lines), lines


def test_it_resumes_in_the_middle_of_an_epoch(tmp_path):
    run("--epochs", 1, "--checkpoint", tmp_path / "whole.pt")
    run("--stop-after", 2, "--checkpoint", tmp_path / "half.pt")
    run("--epochs", 1, "--resume", tmp_path / "half.pt", "--workers", 0, "--checkpoint", tmp_path / "both.pt")
    torch.testing.assert_close(
        weights(tmp_path / "both.pt"), weights(tmp_path / "whole.pt"), rtol=1e-4, atol=1e-4
    )
