"""MkDocs hooks: include documents of the root, inline drawings, refuse remote loads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]
WHOLE = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""Pages whose text is a document in the repository root."""

_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
_TO_ROOT = re.compile(
    rf"\]\(((?:\.\./)+)({'|'.join(map(re.escape, WHOLE.values()))})(?=[#)])"
)
_OPTION = re.compile(r"^\| (?:`\w+`(?:, )?)+(?= \|)", re.MULTILINE)
_DRAWING = re.compile(r'<img alt="([^"]*)" src="([^"]*?)(images/[\w-]+\.svg)"[^>]*>')
_CELL = re.compile(r"(?<=<code>)[\w./:]+(?=</code>[^\n]*</td>)")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(?:https?:)?//'
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's Markdown, with links to and from documents of the root adjusted."""
    if page.file.src_uri == "reference/loaders.md":
        markdown = _OPTION.sub(_link_options, markdown)
    source = WHOLE.get(page.file.src_uri)
    if source is None:
        return _TO_ROOT.sub(_lead_to_page, markdown)
    return _LINK.sub(_relink, (ROOT / source).read_text())


def _link_options(cell: re.Match[str]) -> str:
    return re.sub(r"`(\w+)`", r"[`\1`][gpuloader.DataLoader(\1)]", cell[0])


def _relink(found: re.Match[str]) -> str:
    target, _, anchor = found[1].partition("#")
    anchor = f"#{anchor}" if anchor else ""
    pages = {name: page for page, name in WHOLE.items()} | {"README.md": "index.md"}
    return f"]({pages.get(target, target.removeprefix('docs/'))}{anchor})"


def _lead_to_page(found: re.Match[str]) -> str:
    up, document = found.groups()
    page = next(page for page, name in WHOLE.items() if name == document)
    return f"]({up.removeprefix('../')}{page}"


def on_page_content(html: str, **_: Any) -> str:
    """Inline drawings, which take the page's colors; let tables fold and paths wrap."""
    return _TABLE.sub(_label, _CELL.sub(_let_wrap, _DRAWING.sub(_draw, html)))


def _label(table: re.Match[str]) -> str:
    """Give each cell its column's heading, for small screens, where a row is a list."""
    head, *rows = re.split(r"(?=<tr>)", table[0])[1:]
    headings = [
        re.sub(r"<.*?>", "", one)
        for one in re.findall(r"<th[^>]*>(.*?)</th>", head, re.DOTALL)
    ]
    labeled = [table[0].partition("<tr>")[0], head]
    for row in rows:
        names = iter(headings)
        labeled.append(
            re.sub(
                r"<td", lambda _, names=names: f'<td data-label="{next(names, "")}"', row
            )
        )
    return "".join(labeled)


def _let_wrap(found: re.Match[str]) -> str:
    return re.sub(r"(?<=\w)(/|::)(?=\w)", r"\1<wbr>", found[0])


def _draw(found: re.Match[str]) -> str:
    text = (ROOT / "docs" / found[3]).read_text()
    drawing = re.sub(
        r"<\?xml.*?\?>|<!--.*?-->|<style>.*?</style>", "", text, flags=re.DOTALL
    )
    told = f'role="img" aria-label="{found[1]}" class="drawing"'
    return re.sub(r"\n\s*", "", drawing).replace("<svg ", f"<svg {told} ", 1)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Raise `PluginError` if a page loads anything from another host."""
    if found := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output
