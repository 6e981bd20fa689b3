"""The example that trains a GPT on packed documents, run for real; it resumes to the bit."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpuloader import DataLoader, PackedSequences
from gpuloader.transforms import Cast
from tests.examples.conftest import EXAMPLES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--made", 40, "--batch", 2, "--length", 128)


@pytest.fixture
def train(run):
    return partial(run, "train_gpt")


def weights(path):
    saved = torch.load(path, weights_only=True)
    return torch.cat([one.flatten() for one in saved["model"].values()])


def test_it_learns_from_rows_that_are_full(train):
    rows, *epochs = train(*SMALL, "--epochs", 3).splitlines()
    assert float(re.search(r"rows of 128 tokens, ([\d.]+)% full", rows)[1]) > 95
    losses = [float(re.match(r"epoch \d: loss ([\d.]+), [\d,]+ tokens/s", line)[1]) for line in epochs]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 1.5


def test_it_resumes_in_the_middle_of_an_epoch(tmp_path, train):
    whole, half, both = (tmp_path / f"{name}.pt" for name in ("whole", "half", "both"))
    train(*SMALL, "--epochs", 2, "--checkpoint", whole)
    train(*SMALL, "--stop-after", 3, "--checkpoint", half)
    train(*SMALL, "--epochs", 2, "--resume", half, "--workers", 2, "--checkpoint", both)
    assert torch.equal(weights(both), weights(whole))
    assert not torch.equal(weights(half), weights(whole))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.pt", "half.pt", "whole.pt"]


@torch.no_grad()
def test_the_loss_of_packed_documents_is_that_of_each_alone(monkeypatch):
    """The judge is the same model, given one document at a time without any packing."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_gpt

    sizes = [5, 31, 17, 40, 1, 9, 22]
    tokens, starts = np.random.default_rng(0).integers(1, 256, sum(sizes)), np.cumsum([0, *sizes[:-1]])
    torch.manual_seed(0)
    model = train_gpt.Gpt(64)
    losses, count = 0.0, 0
    for start, size in zip(starts, sizes, strict=True):
        one = torch.from_numpy(tokens[start : start + size])[None]
        labels = torch.cat([one[:, 1:], torch.tensor([[-100]])], 1)
        position = torch.arange(size)[None]
        cuts = torch.tensor([[0, size]], dtype=torch.int32)
        if size > 1:
            batch = {"tokens": one, "labels": labels, "position_ids": position, "cu_seqlens": cuts}
            losses += float(model(batch)) * (size - 1)
            count += size - 1
    rows = PackedSequences(tokens, 64, documents=starts)
    assert len(rows) == 2
    cast = [Cast("tokens", "int64")]
    [batch] = DataLoader(rows, places="cpu", batch_size=2, output="torch", transforms=cast)
    assert float(model(batch)) == pytest.approx(losses / count, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "pass a folder of text files, or --made 200"),
        (["--made", 3, "--stop-after", 0], "--stop-after must be 1 or more"),
        ([Path(__file__).parents[1] / "golden"], "has no files named"),
    ],
    ids=str,
)
def test_options_that_cannot_work_end_with_a_clear_message(arguments, problem, train, capsys):
    with pytest.raises(SystemExit) as caught:
        train(*arguments)
    assert problem in f"{caught.value} {capsys.readouterr().err}"
