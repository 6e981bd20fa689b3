"""Tests that the pages avoid habits that make English sound translated, and two words for one thing."""

import re
from pathlib import Path

import pytest

from tests.test_documents import DOCUMENTS, by_name

ROOT = Path(__file__).parents[1]
PAGES = [*DOCUMENTS, ROOT / "benchmarks/README.md"]
# What not to write, and what to write instead. Names in code and targets of links are free.
HABITS = {
    r"\bpictures?\b": "image",
    r"\bpage-lock(?!ed memory\)|ing`?)\w*": "pin, pinned; page-locked is explained in the glossary",
    r"\banother (?:one )?than\b": "different from",
    r"\banew\b": "again",
    r"\bonly then\b": "cut it, or name the time",
    r"\bhardly any": "almost no",
    r"\bbeside\b": "next to",
    r"\bgiven up\b": "say who stops what",
    r"\bin the place of\b": "instead of",
    r"\bthe (?:way|road|room) of\b": "name the thing",
    r"\b(?:what|which) is no \w+": "what is not a ...",
    r"\bthe next but one\b": "the second one after it",
    r"\bas it may\b|\bas they may\b": "as possible",
    r"\bin spite of\b": "despite",
    r"\bsome \d": "about",
    r"'s sake\b": "for compatibility with",
}


def prose_of(path):
    """Return a page without its blocks of code, code in lines, targets of links, and comments."""
    text = re.sub(
        r"^ *```.*?^ *```$", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.S | re.M
    )
    return re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "…", text)


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_no_habit_of_translated_english(path):
    found = [
        f"{by_name(path)}:{number}: {match[0]!r}: {instead}"
        for number, line in enumerate(prose_of(path).splitlines(), 1)
        for habit, instead in HABITS.items()
        for match in re.finditer(habit, line, re.IGNORECASE)
    ]
    assert found == []
