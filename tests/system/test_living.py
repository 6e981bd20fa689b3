"""A weak set that runs no Python code when one of its objects goes."""

import sys

from gpuloader.system.finalizers import Living


class Thing:
    pass


def test_the_things_that_live_are_there():
    things, kept = Living(), [Thing() for _ in range(3)]
    for one in kept:
        things.add(one)
        things.add(one)
    things.discard(kept[1])
    things.discard(Thing())
    assert set(things) == {kept[0], kept[2]}
    del kept[0], one
    assert list(things) == [kept[1]]


def test_things_may_go_while_others_are_looked_at():
    things, kept = Living(), [Thing() for _ in range(3)]
    for one in kept:
        things.add(one)
    del one
    seen = 0
    for _ in things:
        kept.clear()
        seen += 1
    assert seen == 3
    del _
    assert not list(things)


def test_no_python_code_runs_when_a_thing_goes():
    """A Ctrl-C there would be lost."""
    things, thing, called = Living(), Thing(), []
    things.add(thing)
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    del thing
    sys.setprofile(None)
    assert not called
