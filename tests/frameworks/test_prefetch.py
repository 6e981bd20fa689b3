"""`prefetch` under Lightning, Accelerate, Transformers and Hugging Face's datasets, on one process."""

import json
from pathlib import Path

import pytest

from tests.launching import run as run_program

pytestmark = pytest.mark.timeout(600)  # more than a run may take

PROGRAM = Path(__file__).with_name("prefetch_program.py")


@pytest.fixture
def run(tmp_path):
    def run(framework, *arguments):
        pytest.importorskip(framework)
        run_program(PROGRAM, tmp_path / "seen", framework, *arguments)
        return json.loads((tmp_path / "seen").read_text())

    return run


BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_lightning(run, tmp_path):
    found = run("lightning", "--folder", tmp_path)
    assert found["seen"] == BATCHES * 2
    assert found["validated"] == BATCHES[:2] + BATCHES * 2  # two batches check the loop before it trains
    assert found["resumed"] == BATCHES[2:] + BATCHES
    assert found["length"] == 3


def test_accelerate_around_prepare(run, tmp_path):
    """The end of an epoch is not announced before its last batch is there, though it was read ahead."""
    found = run("accelerate", "--folder", tmp_path)
    assert found["seen"] == BATCHES * 2
    assert found["ends"] == [False, False, True] * 2
    assert found["synced"] == [False, True, True] * 2
    assert found["gathered"] == BATCHES * 2
    assert found["steps"] == 4


def test_transformers(run, tmp_path):
    found = run("transformers", "--folder", tmp_path)
    assert found["seen"] == BATCHES * 2
    assert found["evaluated"] == 10


def test_datasets(run):
    found = run("datasets")
    assert found["seen"] == BATCHES
    assert found["resumed"] == BATCHES[1:]
    assert found["streamed"] == BATCHES
