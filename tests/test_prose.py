"""Tests that pages and the source avoid habits of translated English, and two words for one thing."""

import io
import re
import tokenize
from pathlib import Path

from tests.test_documents import DOCUMENTS, by_name

ROOT = Path(__file__).parents[1]
PAGES = [*DOCUMENTS, ROOT / "benchmarks/README.md"]
SOURCES = sorted(
    path
    for folder in ("gpuloader", "kernels")
    for path in (ROOT / folder).rglob("*.py")
    # It lists the names that modules had in 0.1.
    if path.name != "imports.py"
)
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
    r"\b(?:what|which|that) is no \w+": "what is not a ...",
    r"\bwithout end\b": "forever, endlessly",
    r"\bgo(?:es|ing)? on\b": "continue",
    r"\bthe next but one\b": "the second one after it",
    r"\bas it may\b|\bas they may\b": "as possible",
    r"\bin spite of\b": "despite",
    r"\bsome \d": "about",
    r"'s sake\b": "for compatibility with",
}
# Finds more than these, and in a fifth of the time: few files have any, and taking one apart takes longest.
ANY = re.compile("|".join(habit.removeprefix(r"\b") for habit in HABITS))


def prose_of(path):
    """Return a page without its blocks of code, code in lines, targets of links, and comments."""
    text = re.sub(
        r"^ *```.*?^ *```$", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.S | re.M
    )
    return re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "…", text)


def test_no_habit_of_translated_english():
    assert [
        f"{by_name(path)}:{number}: {match[0]!r}: {instead}"
        for path in PAGES
        for number, line in enumerate(prose_of(path).splitlines(), 1)
        for habit, instead in HABITS.items()
        for match in re.finditer(habit, line, re.IGNORECASE)
    ] == []


def words_of(path):
    """Yield each line of a module's comments and texts, with its number, and without what is code in them."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        # From Python 3.12 on, the text of an f-string is a token by itself.
        if token.type == tokenize.COMMENT or tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE"):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                # Code in backquotes, fields of an f-string, and names in capitals.
                yield number, re.sub(r"`[^`]*`|\{[^{}]*\}|\b[A-Z]{3,}\b", "…", line)


def test_no_habit_of_translated_english_in_the_source():
    assert [
        f"{path}:{number}: {match[0]!r}: {instead}"
        for path in SOURCES
        if ANY.search(path.read_text().lower())
        for number, line in words_of(path)
        for habit, instead in HABITS.items()
        for match in re.finditer(habit, line, re.IGNORECASE)
    ] == []
