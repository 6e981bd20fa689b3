"""Each notebook matches its .py, is fit to commit, runs anywhere and leaves nothing behind."""

import contextlib
import importlib
import io
import json
import re
import runpy
from pathlib import Path

import pytest

from tests.processes import run_in_fork

FOLDER = Path(__file__).parents[1] / "notebooks"
TEXTS = sorted(FOLDER.glob("[0-9]*.py"))
LARGEST = 200_000
each_text = pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)


def cells_of_text(path):
    """Return the cells of a .py in percent format: whether each is code, and its source."""
    _, *parts = re.split(r"^# %%(.*)\n", path.read_text(), flags=re.MULTILINE)
    cells = []
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        if kind.strip() == "[markdown]":
            cells.append((False, re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            cells.append((True, body.strip()))
    return cells


def read_notebook(text):
    return json.loads(text.with_suffix(".ipynb").read_text())


def test_there_is_a_notebook_for_each_text_and_none_besides():
    assert TEXTS
    assert sorted(FOLDER.glob("*.ipynb")) == [text.with_suffix(".ipynb") for text in TEXTS]


@each_text
def test_the_notebook_has_the_cells_of_its_text_and_was_run_from_top_to_bottom(text):
    cells = read_notebook(text)["cells"]
    written = [(cell["cell_type"] == "code", "".join(cell["source"]).strip()) for cell in cells]
    assert written == cells_of_text(text), "run: make notebooks"
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@each_text
def test_the_notebook_is_small_and_names_no_machine(text):
    written = text.with_suffix(".ipynb").read_text()
    assert len(written) < LARGEST
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", written)
    assert not re.search(r"/(home|root|tmp|Users|work|opt|usr)/", without_pictures)
    notebook = read_notebook(text)
    assert set(notebook["metadata"]) == {"jupytext", "kernelspec", "language_info"}
    assert not [cell["metadata"] for cell in notebook["cells"] if cell["metadata"]]


@each_text
def test_the_text_runs_as_a_script_from_any_folder_and_leaves_nothing(text, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    importlib.import_module("matplotlib.pyplot")  # once for all, as it takes longer than most notebooks
    monkeypatch.delenv("GPULOADER_MNIST", raising=False)
    monkeypatch.chdir(tmp_path)

    def work():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            runpy.run_path(str(text), run_name="__main__")
        assert errors.getvalue() == ""

    run_in_fork(work)
    assert list(tmp_path.iterdir()) == []
