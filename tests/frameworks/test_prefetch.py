"""`prefetch` under Lightning, Accelerate, Transformers and Hugging Face's datasets, on one process."""

import json
from pathlib import Path

import pytest

from tests.launching import run as run_program

pytestmark = pytest.mark.timeout(600)  # more than a run may take

PROGRAM = Path(__file__).with_name("prefetch_program.py")


@pytest.fixture
def run(tmp_path):
    def run(framework):
        pytest.importorskip(framework)
        run_program(PROGRAM, tmp_path / "seen", framework, tmp_path)
        return json.loads((tmp_path / "seen").read_text())

    return run


BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_lightning(run):
    assert (
        run("lightning")
        == {
            "seen": BATCHES * 2,
            "validated": BATCHES[:2] + BATCHES * 2,  # two batches check the loop before it trains
            "resumed": BATCHES[2:] + BATCHES,
            "length": 3,
        }
    )


def test_accelerate_around_prepare(run):
    """The end of an epoch is not announced before its last batch is there, though it was read ahead."""
    assert run("accelerate") == {
        "seen": BATCHES * 2,
        "ends": [False, False, True] * 2,
        "synced": [False, True, True] * 2,
        "gathered": BATCHES * 2,
        "steps": 4,
    }


def test_transformers(run):
    assert run("transformers") == {"seen": BATCHES * 2, "evaluated": 10}


def test_datasets(run):
    assert run("datasets") == {"seen": BATCHES, "resumed": BATCHES[1:], "streamed": BATCHES}
