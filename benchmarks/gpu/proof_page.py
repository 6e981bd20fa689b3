"""The page of `proof.py`: a report as Markdown; imports nothing but the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def render_page(report: dict[str, Any], names: Sequence[str]) -> str:
    """Return a report as one page: the machine, a line for each part, and the output of some.

    The output is the end of what a failed part has printed, or the figures of one that has passed.

    >>> part = {"result": "failed", "seconds": 2.0, "summary": "1 problems", "output": "bad GPU: …"}
    >>> report = {"machine": {"gpu": "", "failure": "no driver"}, "parts": {"doctor": part}}
    >>> print(render_page(report, ["doctor"]))
    # gpuloader without a GPU: 0 of 1 parts passed
    <BLANKLINE>
    | machine | |
    |---|---|
    | failure | no driver |
    <BLANKLINE>
    | part | result | seconds | of the processor | in short |
    |---|---|---:|---:|---|
    | doctor | **failed** | 2 | 0 | 1 problems |
    <BLANKLINE>
    ## doctor: failed
    <BLANKLINE>
    ```text
    bad GPU: …
    ```
    <BLANKLINE>
    """
    machine, parts = report["machine"], report["parts"]
    passed = sum(parts[name]["result"] == "passed" for name in names)
    where = f"on {machine['gpu']}" if machine.get("gpu") else "without a GPU"
    lines = [f"# gpuloader {where}: {passed} of {len(names)} parts passed", "", "| machine | |", "|---|---|"]
    lines += [f"| {key} | {_cell(value)} |" for key, value in machine.items() if value]
    lines += ["", "| part | result | seconds | of the processor | in short |", "|---|---|---:|---:|---|"]
    for name in names:
        part = parts[name]
        result = part["result"] if part["result"] != "failed" else "**failed**"
        times = f"{part['seconds']:.0f} | {part.get('processor', 0):.0f}"
        lines.append(f"| {name} | {result} | {times} | {_cell(part['summary'])} |")
    for name in names:
        if output := parts[name].get("output"):
            lines += ["", f"## {name}: {parts[name]['result']}", "", *_show(output)]
    return "\n".join(lines) + "\n"


def _show(output: str) -> list[str]:
    if output.startswith("**"):  # Markdown already
        return output.splitlines()
    fence = "````" if "```" in output else "```"
    return [f"{fence}text", *output.splitlines(), fence]


def _cell(text: object) -> str:
    return " ".join(str(text).replace("|", "\\|").split())[:160]
