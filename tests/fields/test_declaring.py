"""Programs: feeds declared inside are found by name there, and only there."""

import numpy as np
import pytest

from gpuloader import DataFeeder, DataLoader, data
from gpuloader.fields.spec import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
    resolve_feeds,
)
from tests.fakes import run_threads


def test_a_feed_declared_in_a_program_is_found_there_and_nowhere_else():
    train, startup = Program(), Program()
    with program_guard(train, startup):
        inside = data("declared in train", [None, 2])
        assert default_main_program() is train
        assert default_startup_program() is startup
        assert resolve_feeds(["declared in train"]) == (inside,)
        with pytest.raises(ValueError, match="no feed named 'declared outside'"):
            resolve_feeds(["declared outside"])
    with pytest.raises(ValueError, match="no feed named 'declared in train'"):
        resolve_feeds(["declared in train"])
    assert resolve_feeds(["declared in train"], train) == (inside,)


def test_a_program_knows_its_feeds():
    program = Program()
    program.random_seed = 90
    with program_guard(program):
        feeds = [data("a", [None]), data("b", [None], None)]
    block = program.global_block()
    assert block.var("b") is feeds[1]
    assert feeds[1].dtype == np.float32
    assert (block.has_var("a"), block.has_var("c")) == (True, False)
    assert program.list_vars() == program.clone(for_test=True).list_vars() == feeds
    with pytest.raises(ValueError, match="no feed named 'c'"):
        block.var("c")


def test_guards_nest_and_end_with_an_exception():
    outer, inner = Program(), Program()
    with program_guard(outer):
        startup = default_startup_program()
        with pytest.raises(KeyError), program_guard(inner):
            assert default_startup_program() is startup
            raise KeyError
        assert default_main_program() is outer
    assert default_main_program() is not outer


def test_another_thread_declares_in_its_own_program():
    seen = []
    with program_guard(Program()):
        run_threads(lambda: seen.append(default_main_program()), 1)
        assert seen[0] is not default_main_program()
    assert seen[0] is default_main_program()


@pytest.mark.parametrize("arguments", [(None,), ("train",), (Program(), 3)])
def test_what_is_no_program(arguments):
    with pytest.raises(TypeError, match="must be a Program"), program_guard(*arguments):
        pass


def test_names_serve_loaders_and_feeders():
    program = Program()
    with program_guard(program):
        data("x", [None, 2])
        loader = DataLoader.from_generator(["x"], capacity=1)
    feeder = DataFeeder(["x"], "cpu", program)
    loader.set_sample_list_generator(lambda: [[([1, 2],)]], places="cpu")
    [[batch]] = list(loader)
    assert (batch["x"] == feeder.feed([([1, 2],)])["x"]).all()
    with pytest.raises(ValueError, match="no feed named"):
        DataFeeder(["x"], "cpu", Program())
