"""The list of what differs on purpose: the page for Paddle's users shows it, and cases prove each entry."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.paddle_suite.datasets import stream
from tests.paddle_suite.differences import DIFFERENCES

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "coming-from-paddle.md"


class Pair(NamedTuple):
    """A sample of two numbers."""

    first: int
    second: int


# What one of the libraries refuses or does otherwise: what is tried, and what comes of it in gpuloader and in
# Paddle. That is a value; or the class of an error, or a part of the message of a `ValueError`.
REFUSED = {
    "oversampling": (lambda lib: len(list(lib.io.RandomSampler(range(9), False, 12))), 12, "num_samples"),
    "empty-subsets": (lambda lib: list(lib.io.SubsetRandomSampler([])), [], "indices"),
    "weights-are-a-list": (lambda lib: len(lib.io.WeightedRandomSampler([1.0, 2.0], 2)), 2, AttributeError),
    "iterables-can-be-listed": (lambda lib: len(list(stream(lib, 3))), 3, RuntimeError),
    "none-is-an-item": (
        lambda lib: list(lib.reader.compose(lambda: iter([1, None]), lambda: iter([3, 4]))()),
        [(1, 3), (None, 4)],
        "not aligned",
    ),
    "sizes-are-whole": (lambda lib: next(lib.batch(lambda: iter("abc"), 2.7)()), "batch_size", ["a", "b"]),
    "classes-stay": (
        lambda lib: hasattr(next(iter(lib.io.DataLoader([Pair(1, 2)], places=lib.cpu))), "_fields"),
        True,
        False,
    ),
    "samples-are-arrays": (
        lambda lib: isinstance(lib.io.TensorDataset([lib.tensor([[1.0]])])[0][0], np.ndarray),
        True,
        False,
    ),
    "indices-are-an-array": (
        lambda lib: isinstance(lib.io.random_split(range(4), [2, 2])[0].indices, list),
        False,
        True,
    ),
    "no-empty-places": (lambda lib: lib.fluid.cpu_places(0), "device_count", []),
    "typed-errors": (lambda lib: lib.reader.multiprocess_reader([]), TypeError, AssertionError),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_one_of_them_refuses(lib, key):
    attempt, ours, theirs = REFUSED[key]
    expected = ours if lib.differs(key) else theirs
    if isinstance(expected, str | type):
        error, message = (ValueError, expected) if isinstance(expected, str) else (expected, None)
        with pytest.raises(error, match=message):
            attempt(lib)
    else:
        assert attempt(lib) == expected


def test_the_page_lists_every_difference():
    section = PAGE.read_text().split("\n## What differs on purpose\n")[1].split("\n## ")[0]
    rows = [tuple(row.strip("| ").split(" | ")) for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)]
    assert rows[2:] == list(DIFFERENCES.values())  # below the heading and its line


def test_every_difference_shows_in_a_case():
    cases = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    named = set(re.findall(r'differs\("([\w-]+)"\)', cases))
    assert named | set(REFUSED) == set(DIFFERENCES)
