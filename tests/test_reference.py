"""Tests that the reference shows every public name, each with an example."""

import inspect
import re
from pathlib import Path

from tests.public_api import MODULES, find

REFERENCE = sorted((Path(__file__).parents[1] / "docs/reference").glob("*.md"))


def shown():
    """Yield every object that a page of the reference shows, with the code of that page."""
    for path in REFERENCE:
        text = path.read_text()
        code = "".join(re.findall(r"^ *```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE))
        for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
            found = find(name)
            yield found, code
            if inspect.ismodule(found):
                yield from ((getattr(found, public), code) for public in getattr(found, "__all__", ()))


def test_no_public_name_is_missing_and_each_has_an_example():
    code = {}
    for found, text in shown():
        code[id(found)] = code.get(id(found), "") + text
    public = [(name, getattr(find(module), name)) for module in MODULES for name in find(module).__all__]
    assert [name for name, found in public if id(found) not in code] == []
    without = [
        name
        for name, found in public
        if not inspect.ismodule(found)
        and not re.search(r">>> |::\n", found.__doc__ or "")
        and not re.search(rf"\b{name}\b", code.get(id(found), ""))
    ]
    assert without == []
