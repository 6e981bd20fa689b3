"""Turns examples in docstrings into blocks, and public names into links."""

from __future__ import annotations

import re
from typing import Any

import griffe

_NAME = re.compile(r"(?<![`\[])`([A-Za-z_]\w*)(?:\(\))?`(?!`)")
# The parser would take the hyphen for a minus sign.
_LIKE = re.compile(r"(?<= : )(array|dtype|path)-like")
_COMMON = {"batch", "data", "reader", "fluid"}
"""Public names that are also ordinary words, so they are not linked."""


class Docstrings(griffe.Extension):
    """Rewrites docstrings when griffe has collected a package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite every docstring of the package."""
        names = {
            str(name): f"{pkg.path}.{name}"
            for name in pkg.exports or ()
            if str(name) not in _COMMON
        }
        self._rewrite(pkg, names)

    def _rewrite(self, item: griffe.Object, names: dict[str, str]) -> None:
        if item.docstring is not None:
            item.docstring.value = _link(_fence(item.docstring.value), names, item.name)
        for member in item.members.values():
            if not member.is_alias:
                self._rewrite(member, names)  # type: ignore[arg-type]


def _fence(text: str) -> str:
    """Put each example outside an Examples section into one, or into a fenced block."""
    lines: list[str] = []
    section, inside = "", False
    rows = _LIKE.sub(r"\1_like", text).splitlines()
    for number, line in enumerate(rows):
        below = rows[number + 1] if number + 1 < len(rows) else ""
        if below and set(below) == {"-"}:
            section = line
        if line.startswith(">>> ") and not inside and section != "Examples":
            if section:
                section = "Examples"
                lines += [section, "-" * len(section)]
            else:
                inside = True
                lines.append("```pycon")
        if inside and not line.strip():
            inside = False
            lines.append("```")
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def _link(text: str, names: dict[str, str], own: str) -> str:
    parts = re.split(
        r"(^```.*?^```$|^ *>>> .*?(?:\n\s*\n|\Z))", text, flags=re.DOTALL | re.MULTILINE
    )
    return "".join(
        part if number % 2 else _NAME.sub(lambda found: _target(found, names, own), part)
        for number, part in enumerate(parts)
    )


def _target(found: re.Match[str], names: dict[str, str], own: str) -> str:
    name = found[1]
    return f"[`{name}`][{names[name]}]" if name in names and name != own else found[0]
