"""The examples that find shapes in pictures, as masks and as boxes, run for real for a few epochs."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests import launching

pytest.importorskip("torch")
pillow = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLES = Path(__file__).parents[2] / "examples"
SCORES = {
    "train_segmentation.py": r"mean IoU ([\d.]+)%",
    "train_detection.py": r"([\d.]+)% of the boxes found",
}


@pytest.mark.parametrize("name", SCORES)
def test_it_learns_and_draws_what_it_learns_from(name, tmp_path):
    drawn = tmp_path / "look.png"
    shown = launching.run(
        EXAMPLES / name, "--made", 50, "--batch", 8, "--size", 48, "--epochs", 4, "--show", drawn
    )
    lines = [line for line in shown.splitlines() if line.startswith("epoch ")]
    pattern = rf"epoch \d: loss ([\d.]+), {SCORES[name]}; [\d,]+ pictures/s"
    found = [re.fullmatch(pattern, line) for line in lines]
    assert len(found) == 4
    assert all(found), lines
    losses = [float(match[1]) for match in found]
    assert losses[-1] < 0.8 * losses[0]
    assert all(0 <= float(match[2]) <= 100 for match in found)
    with pillow.open(drawn) as image:
        assert image.size == (3 * 52 + 4, 3 * 52 + 4)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [([], "pass a folder of images"), (["--made", "5"], "--made must be 20 or more for a batch")],
)
def test_options_that_cannot_work_end_with_a_clear_message(name, arguments, problem, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert problem in capsys.readouterr().err
