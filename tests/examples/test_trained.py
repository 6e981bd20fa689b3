"""The examples that train on images with masks or boxes, on audio and on views, run for a few epochs."""

import re

import pytest

pytest.importorskip("torch")
PICTURES = "--made 50 --batch 8 --size 48 --epochs 4"
# The package that each needs, its arguments, what its lines say after the loss, and how far that must fall.
RUNS = {
    "segmentation": ("PIL", PICTURES, r"mean IoU ([\d.]+)%; .* pictures/s", 0.8),
    "detection": ("PIL", PICTURES, r"([\d.]+)% of the boxes found; .* pictures/s", 0.8),
    "audio": ("soxr", "--made 60 --batch 8 --epochs 6", r"([\d.]+)% right", 0.9),
    "contrastive": ("PIL", "--made 96 --batch 16 --size 32 --epochs 6", r"([\d.]+)% of neighbors right", 0.9),
}


@pytest.fixture(params=RUNS)
def name(request):
    pytest.importorskip(RUNS[request.param][0])
    return request.param


def test_it_learns_and_draws_what_it_learns_from(name, run, tmp_path):
    _, arguments, told, falls = RUNS[name]
    epochs, drawn = int(arguments[-1]), ["--show", tmp_path / "look.png"] if falls == 0.8 else []
    shown = run(f"train_{name}", *arguments.split(), *drawn)
    lines = [line for line in shown.splitlines() if line.startswith("epoch ")]
    found = [re.fullmatch(rf"epoch \d: loss ([\d.]+), {told}", line) for line in lines]
    assert len(found) == epochs
    assert all(found), lines
    first, *others = (float(match[1]) for match in found)
    assert min(others) < falls * first
    assert all(0 <= float(match[2]) <= 100 for match in found)
    if drawn:
        with pytest.importorskip("PIL.Image").open(drawn[1]) as image:
            assert image.size == (3 * 52 + 4, 3 * 52 + 4)


@pytest.mark.parametrize(
    ("given", "problem"), [([], "pass a folder of"), (["--made", "5"], "or more for a batch")]
)
def test_options_that_cannot_work_end_with_a_clear_message(name, given, problem, run, capsys):
    with pytest.raises(SystemExit):
        run(f"train_{name}", *given)
    assert problem in capsys.readouterr().err
