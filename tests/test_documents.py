"""Every Python block of the README and the docs runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{index}")
    for path in DOCUMENTS
    for index, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {"__name__": "block"})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


def test_the_tests_that_the_design_names_exist():
    for path, name in re.findall(
        r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?", (ROOT / "docs/design.md").read_text()
    ):
        assert (ROOT / path).exists(), path
        assert (
            not name
            or f"class {name}" in (ROOT / path).read_text()
            or f"def {name}" in (ROOT / path).read_text()
        )
