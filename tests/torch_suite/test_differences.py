"""The list of differences: every entry shows in a case and stands on the page."""

from pathlib import Path

import pytest

from tests.torch_suite.differences import DIFFERENCES

HERE = Path(__file__).parent
CASES = "".join(path.read_text() for path in HERE.glob("*.py") if path.name != "differences.py")
PAGE = HERE.parents[1] / "docs/coming-from-torch.md"


@pytest.mark.parametrize("key", DIFFERENCES)
def test_it_shows_in_a_case_and_stands_on_the_page(key):
    """In its table, in the same words."""
    assert f'differs("{key}")' in CASES
    theirs, ours, _ = DIFFERENCES[key]
    text = PAGE.read_text().replace("`", "")
    assert f"| {theirs} | {ours} |" in text
