"""Tests of the site's tools, which rewrite docstrings and pages."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("griffe")
PluginError = pytest.importorskip("mkdocs.exceptions").PluginError

DOCS = Path(__file__).parents[1] / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(f"site_{name}", DOCS / f"tools/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docstrings, pages = load("docstrings"), load("pages")


def page(name):
    return SimpleNamespace(file=SimpleNamespace(src_uri=name))


def rewritten(text):
    import griffe

    module = griffe.Module("package")
    function = griffe.Function("act", docstring=griffe.Docstring(text))
    module["act"] = function
    module.exports = ["DataLoader", "batch"]
    docstrings.Docstrings().on_package(pkg=module)
    return function.docstring.value


def test_bare_examples_become_blocks_or_sections_and_sections_of_examples_stay_as_they_are():
    assert rewritten("Add.\n\n>>> 1 + 1\n2\n\nMore.") == "Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    text = "Add.\n\nAttributes\n----------\nx : int\n    One.\n\n>>> 1 + 1\n2"
    assert rewritten(text) == text.replace("\n>>>", "\nExamples\n--------\n>>>")
    text = "Add.\n\nExamples\n--------\n>>> DataLoader\n1\n\nOnce more:\n\n>>> 2\n2"
    assert rewritten(text) == text


def test_public_names_become_links_but_not_in_examples_nor_where_they_are_words():
    link = "[`DataLoader`][package.DataLoader]"
    assert rewritten("See `DataLoader`, a `batch`.") == f"See {link}, a `batch`."
    assert "[`DataLoader`]" not in rewritten("Examples\n--------\n>>> print('`DataLoader`')\n`DataLoader`")


def test_pages_load_nothing_from_other_hosts():
    own = (
        '<link href="assets/a.css" rel="stylesheet"><script src="a.js"></script><a href="https://semver.org">'
    )
    assert pages.on_post_page(own, page=page("a.md")) == own
    for foreign in (
        '<script src="https://cdn.host/a.js"></script>',
        '<script async src="//cdn.host/a.js"></script>',
        '<img alt="" src="http://host/a.png">',
        '<link rel="preconnect" href="https://fonts.host">',
        '<link rel="stylesheet" href="https://fonts.host/a.css">',
    ):
        with pytest.raises(PluginError, match=r"a\.md loads from another host"):
            pages.on_post_page(foreign, page=page("a.md"))


def test_documents_of_the_root_are_pages_whose_links_and_those_to_which_lead_to_pages():
    for name in pages.WHOLE:
        text = pages.on_page_markdown("", page=page(name))
        assert text.startswith("# ")
        for target in re.findall(r"\]\((?!https://)([^)#]+)", text):
            assert (DOCS / target).exists(), target
    for name, text, expected in (
        ("index.md", "[a](../CONTRIBUTING.md#tests) [b](faq.md)", "[a](contributing.md#tests) [b](faq.md)"),
        ("reference/index.md", "[a](../../CHANGELOG.md)", "[a](../changelog.md)"),
        ("reference/index.md", "[a](../faq.md) `CHANGELOG.md`", "[a](../faq.md) `CHANGELOG.md`"),
    ):
        assert pages.on_page_markdown(text, page=page(name)) == expected


def test_drawings_are_put_into_the_page_and_follow_the_readers_colours():
    html = pages.on_page_content('<p><img alt="A batch." src="../images/batch.svg" /></p>')
    assert html.startswith('<p><svg role="img" aria-label="A batch." class="drawing"')
    assert "<style>" not in html  # drawings use the page's own colors
    for path in (DOCS / "images").glob("*.svg"):
        assert path.name == "logo.svg" or "prefers-color-scheme: dark" in path.read_text(), path.name


def test_cells_carry_their_headings_for_small_screens():
    html = pages.on_page_content(
        "<table>\n<thead>\n<tr>\n<th>name</th>\n<th>what <code>x</code></th>\n</tr>\n</thead>\n<tbody>\n"
        "<tr>\n<td>a</td>\n<td>b</td>\n</tr>\n</tbody>\n</table>"
    )
    assert re.findall(r"<td.*", html) == ['<td data-label="name">a</td>', '<td data-label="what x">b</td>']


def test_the_home_page_leads_to_each_guide_of_something_to_train_on_and_the_search_to_their_guides_first():
    rows = re.findall(
        r"^\| train (?:a language model )?on (.+) \| \[.*\]\((.+)\) \|$",
        (DOCS / "guides/index.md").read_text(),
        re.M,
    )
    home = (DOCS / "index.md").read_text()
    assert len(rows) > 9
    assert [guide for _, guide in rows if f"](guides/{guide})**" not in home] == []
    for name in ("segmentation", "detection", "video", "audio"):
        text = (DOCS / f"guides/{name}.md").read_text()
        assert re.match(r"---\nsearch: \{ boost: [2-9] \}\n---\n\n# " + name, text, re.I)
