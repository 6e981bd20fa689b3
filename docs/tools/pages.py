"""Pages on their way to the site: documents of the root, drawings, nothing from afar."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]
WHOLE = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
"""Pages that are documents of the root."""

_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
_DRAWING = re.compile(r'<img alt="([^"]*)" src="([^"]*?)(images/[\w-]+\.svg)"[^>]*>')
_LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(?:https?:)?//'
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the root's documents in their pages, with links that hold there."""
    source = WHOLE.get(page.file.src_uri)
    if source is None:
        return markdown
    return _LINK.sub(_relink, (ROOT / source).read_text())


def _relink(found: re.Match[str]) -> str:
    target, _, anchor = found[1].partition("#")
    anchor = f"#{anchor}" if anchor else ""
    pages = {name: page for page, name in WHOLE.items()} | {"README.md": "index.md"}
    return f"]({pages.get(target, target.removeprefix('docs/'))}{anchor})"


def on_page_content(html: str, **_: Any) -> str:
    """Put drawings into the page itself, where they take its colours."""
    return _DRAWING.sub(_draw, html)


def _draw(found: re.Match[str]) -> str:
    text = (ROOT / "docs" / found[3]).read_text()
    drawing = re.sub(
        r"<\?xml.*?\?>|<!--.*?-->|<style>.*?</style>", "", text, flags=re.DOTALL
    )
    told = f'role="img" aria-label="{found[1]}" class="drawing"'
    return re.sub(r"\n\s*", "", drawing).replace("<svg ", f"<svg {told} ", 1)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load something from another host."""
    if found := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output
