"""The list of what differs on purpose: the page for Paddle's users shows it, and cases prove each entry."""

import re
from pathlib import Path

from tests.paddle_suite.differences import DIFFERENCES

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "coming-from-paddle.md"


def test_the_page_lists_every_difference():
    section = PAGE.read_text().split("\n## What differs on purpose\n")[1].split("\n## ")[0]
    rows = [tuple(row.strip("| ").split(" | ")) for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)]
    assert rows[2:] == list(DIFFERENCES.values())  # below the heading and its line


def test_every_difference_shows_in_a_case():
    cases = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    named = set(re.findall(r'differs\("([\w-]+)"\)', cases))
    assert named == set(DIFFERENCES)
