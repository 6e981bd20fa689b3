"""The package's dataclasses, beside the standard library's."""

import dataclasses
import inspect
import pickle
import subprocess
import sys

import pytest

from gpuloader.system import lazy_dataclasses

OPTIONS = [
    {},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"slots": True, "eq": False, "repr": False},
    {"slots": True, "weakref_slot": True},
    {"kw_only": True},
]


def make(module, options):
    """Return a class that a module's decorator makes."""

    @module.dataclass(**options)
    class Point:
        """A point."""

        __qualname__ = "Point"  # where pickle looks for it
        x: int
        name: str = "one"
        seen: list[int] = dataclasses.field(default_factory=list)
        hidden: int = dataclasses.field(default=3, repr=False, compare=False)
        made: dict[str, int] = dataclasses.field(default_factory=dict, init=False)
        late: int = dataclasses.field(default=0, init=False)
        last: int = dataclasses.field(default=7, kw_only=True)

        def __post_init__(self):
            object.__setattr__(self, "late", self.x)

    return Point


@pytest.fixture(params=OPTIONS, ids=str)
def both(request, monkeypatch):
    """Return the package's class and the standard one; pickle finds the first."""
    ours, standard = (make(module, request.param) for module in (lazy_dataclasses, dataclasses))
    monkeypatch.setattr(sys.modules[__name__], "Point", ours, raising=False)
    return ours, standard


def values(point):
    return [getattr(point, one.name) for one in dataclasses.fields(point)]


def outcome(function, *given, **named):
    """Return what a call returns, or its error."""
    try:
        return function(*given, **named)
    except Exception as error:
        return type(error), str(error)


def test_it_has_the_same_signature_and_the_same_errors(both):
    signatures = [str(inspect.signature(kind)).replace(" at 0x", "") for kind in both]
    assert signatures[0].split("seen")[0] == signatures[1].split("seen")[0]
    for given, named in [((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"y": 2})]:
        assert outcome(both[0], *given, **named) == outcome(both[1], *given, **named)
    assert both[0].__match_args__ == both[1].__match_args__


def test_objects_have_the_same_values_and_look_the_same(both):
    ours, standard = (kind(x=5, seen=[1], last=2) for kind in both)
    assert values(ours) == values(standard) == [5, "one", [1], 3, {}, 5, 2]
    assert ("0x" in repr(ours)) == ("0x" in repr(standard))
    assert "0x" in repr(ours) or repr(ours) == repr(standard)
    assert ours.made is not both[0](x=5).made
    assert dataclasses.asdict(dataclasses.replace(ours, x=6)) == dataclasses.asdict(
        dataclasses.replace(standard, x=6)
    )


def test_they_are_compared_and_hashed_alike(both):
    for kind in both:
        kind.results = [
            kind(x=1) == kind(x=1),
            kind(x=1) == kind(x=1, hidden=9),
            kind(x=1) == kind(x=2),
            kind(x=1) == 1,
            type(outcome(hash, kind(x=1))),
            kind.__hash__ is None,
        ]
    assert both[0].results == both[1].results


def test_a_frozen_one_refuses_changes_with_the_same_error(both):
    ours, standard = (kind(x=1) for kind in both)
    for change in (lambda one: setattr(one, "x", 2), lambda one: delattr(one, "name")):
        assert outcome(change, ours) == outcome(change, standard)
    assert outcome(getattr, ours, "x") == outcome(getattr, standard, "x")


def test_a_subclass_may_have_further_attributes_but_cannot_change_fields(both):
    for kind in both:
        if kind is both[1] and hasattr(kind, "__slots__") and hasattr(kind, "__setstate__"):
            kind.results = [3, both[0].results[1]]  # Python 3.11 refuses any attribute there, by mistake
            continue

        class More(kind):
            def __init__(self):
                super().__init__(x=1)
                self.more = 2
                del self.more
                self.more = 3

        kind.results = [More().more, outcome(setattr, More(), "x", 2)]
    assert both[0].results == both[1].results


def test_pickles_bring_back_the_values(both):
    ours = both[0](x=5, seen=[1])
    assert values(pickle.loads(pickle.dumps(ours))) == values(ours)


def test_an_import_compiles_few_functions():
    """The standard decorator would compile some 400, which took half of the time that the import took."""
    code = (
        "import sys, numpy, inspect; names = []\n"
        "sys.addaudithook(lambda event, given: event == 'compile' and names.append(given[1]))\n"
        "from gpuloader import DataLoader\n"
        "assert names.count('<string>') < 40, names"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
