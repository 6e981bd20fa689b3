"""What a release must agree on, whenever one is made; the release workflow passes its tag as RELEASE."""

import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_tag_changelog_citation_and_home_name_the_same_version_and_day():
    assert os.environ.get("RELEASE", VERSION) == VERSION
    released = re.findall(
        r"^## \[(\d.*?)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    citation = (ROOT / "CITATION.cff").read_text()
    cited = [re.search(rf"^{key}: (.+)$", citation, re.MULTILINE)[1] for key in ("version", "date-released")]
    assert list(released[0]) == cited
    assert released[0][0] == VERSION
    assert [day for _, day in released] == sorted((day for _, day in released), reverse=True)
    assert f"version {VERSION}\n" in (ROOT / "docs/index.md").read_text()
