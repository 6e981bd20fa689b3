"""The examples that learn from audio and from views of images, run for real for a few epochs."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests import launching

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = {
    "train_audio.py": ("soundfile", ("--made", 60, "--batch", 8), "right"),
    "train_contrastive.py": ("PIL", ("--made", 96, "--batch", 16, "--size", 32), "of neighbors right"),
}


@pytest.fixture(params=RUNS)
def example(request):
    package, arguments, told = RUNS[request.param]
    pytest.importorskip(package)
    if package == "soundfile":
        pytest.importorskip("soxr")
    return request.param, arguments, told


def test_it_learns(example):
    name, arguments, told = example
    lines = launching.run(EXAMPLES / name, *arguments, "--epochs", 6).splitlines()
    found = [re.fullmatch(rf"epoch \d: loss ([\d.]+), ([\d.]+)% {told}", line) for line in lines]
    assert len(found) == 6
    assert all(found), lines
    first, *others = (float(match[1]) for match in found)
    assert min(others) < 0.9 * first


@pytest.mark.parametrize(
    ("given", "problem"), [([], "pass a folder of"), (["--made", "5"], "or more for a batch")]
)
def test_options_that_cannot_work_end_with_a_clear_message(example, given, problem, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [example[0], *given])
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLES / example[0]), run_name="__main__")
    assert problem in capsys.readouterr().err
