"""Run each notebook's .py and write its .ipynb, with all outputs.

    python notebooks/execute.py            # all notebooks
    python notebooks/execute.py 02 05      # those whose names begin with 02 or 05

The .py is the source; the .ipynb is generated from it and never edited. It leaves out metadata that differs
between runs (timing, random IDs, paths), so that diffs show only real changes.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
LARGEST = 200_000
"""The most bytes of an .ipynb; keep pictures few and small."""
PATHS = re.compile(r"/(?:home|root|tmp|Users|work|opt|usr)/")


def execute(text: Path) -> Path:
    """Run a .py and write its .ipynb; it must leave no files behind and show no path."""
    notebook = jupytext.read(text, fmt="py:percent")
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(
            notebook,
            timeout=120,
            kernel_name="python3",
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": empty}},
        )
        client.execute()
        if left := sorted(path.name for path in Path(empty).iterdir()):
            raise SystemExit(f"{text.name} leaves files behind: {left}")
    tidy(notebook)
    written = nbformat.writes(notebook) + "\n"
    check(text.name, notebook, written)
    target = text.with_suffix(".ipynb")
    target.write_text(written)
    return target


def tidy(notebook: Any) -> None:
    """Keep what readers see and remove metadata that differs between runs."""
    kernel = notebook.metadata["kernelspec"]
    notebook.metadata = {
        "jupytext": {"formats": notebook.metadata["jupytext"]["formats"]},
        "kernelspec": {name: kernel[name] for name in ("display_name", "language", "name")},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        cell.metadata = {}
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                output["data"] = {"image/png": data["image/png"]}
                output["metadata"] = {}


def check(name: str, notebook: Any, written: str) -> None:
    """Raise `SystemExit` if an output is not fit to commit."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    if wrong := [output for output in outputs if output.get("name") == "stderr"]:
        raise SystemExit(f"{name} writes to stderr: {wrong[0]['text']}")
    told = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    if addresses := [text for text in told if " at 0x" in text]:
        raise SystemExit(f"{name} shows an object by its address: {addresses[0]}")
    if paths := [text for text in told if PATHS.search(text)]:
        raise SystemExit(f"{name} shows a path of this machine: {paths[0]}")
    if len(written) > LARGEST:
        raise SystemExit(f"{name} has {len(written):,} bytes, more than {LARGEST:,}: draw less, or smaller")


def main() -> None:
    """Execute the requested notebooks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=[""], help="beginnings of names (default: all notebooks)")
    names = tuple(parser.parse_args().names)
    for text in sorted(FOLDER.glob("[0-9]*.py")):
        if text.name.startswith(names):
            target = execute(text)
            print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
