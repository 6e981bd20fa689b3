"""Resizing is compiled once that pays, by one thread; where it cannot be, Pillow does it."""

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gpuloader.sources.pictures import compiling, resizing
from gpuloader.sources.pictures.compiling import LateResizer, compile_resizer


@pytest.fixture
def fresh(monkeypatch):
    """Let `compile_resizer` do its work again."""
    monkeypatch.setattr(compiling, "compile_resizer", compile_resizer.__wrapped__)
    return compile_resizer.__wrapped__


def test_it_is_compiled_after_so_many_pictures(monkeypatch):
    monkeypatch.setattr(compiling, "compile_resizer", lambda: resizing.resize)
    late = LateResizer(pays_after=3)
    assert [late.find() for _ in range(5)] == [None, None, None, resizing.resize, resizing.resize]


def test_one_thread_compiles_and_the_others_go_on_with_pillow(monkeypatch):
    compiles, may_end, calls = threading.Event(), threading.Event(), []

    def compile_slowly():
        calls.append(threading.current_thread())
        compiles.set()
        may_end.wait(10)
        return resizing.resize

    monkeypatch.setattr(compiling, "compile_resizer", compile_slowly)
    late = LateResizer(pays_after=0)
    thread = threading.Thread(target=late.find)
    thread.start()
    assert compiles.wait(10)
    assert late.find() is None
    may_end.set()
    thread.join()
    assert late.find() is resizing.resize
    assert calls == [thread]


def test_what_cannot_be_compiled_is_not_tried_again(monkeypatch):
    calls = []
    monkeypatch.setattr(compiling, "compile_resizer", lambda: calls.append(1))
    late = LateResizer(pays_after=0)
    assert [late.find() for _ in range(3)] == [None] * 3
    assert calls == [1]


def test_a_child_that_is_forked_meanwhile_goes_on_with_pillow(monkeypatch):
    late = LateResizer(pays_after=0)
    answers = []

    def fork():
        child = os.fork()
        if not child:
            os._exit(0 if late.find() is None else 1)
        answers.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    monkeypatch.setattr(compiling, "compile_resizer", fork)
    late.find()
    assert answers == [0]


def test_without_numba_pillow_resizes(monkeypatch, fresh):
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    assert fresh() is None


@pytest.mark.parametrize("error", [ImportError("no libllvm"), AttributeError("numba.void"), TypeError("old")])
def test_with_a_broken_numba_pillow_resizes(monkeypatch, fresh, error):
    pytest.importorskip("numba")

    def fail(name):
        raise error

    monkeypatch.setattr(compiling, "import_module", fail)
    assert fresh() is None


def test_with_numbas_compiler_switched_off_pillow_resizes(monkeypatch, fresh):
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert fresh() is None


def test_where_no_folder_can_be_written_to_nothing_is_kept(monkeypatch, fresh):
    numba = pytest.importorskip("numba")
    asked = []

    def refuse(signature, *, nogil, cache=False):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function 'resize': no locator available for file")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", refuse)
    assert fresh() is resizing.resize
    assert asked == [True, False]


def test_it_does_not_hold_the_lock_of_the_interpreter():
    pytest.importorskip("numba")
    resizer = compile_resizer()
    assert resizer.targetoptions["nogil"]


def test_importing_the_package_does_not_import_numba():
    code = "import sys, gpuloader, gpuloader.sources.pictures.resampling; print('numba' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_memory_that_is_read_only_is_taken():
    pytest.importorskip("numba")
    pixels, out = np.full((4, 4, 3), 7, np.uint8), np.empty((2, 2, 3), np.uint8)
    pixels.flags.writeable = False
    compile_resizer()(pixels, (0, 0), (0, 0, 4, 4), (2, 2), (0, 0), 0, False, out)
    assert (out == 7).all()


def test_all_that_it_calls_is_compiled_too():
    functions = {name for name, one in vars(resizing).items() if callable(one) and hasattr(one, "__code__")}
    assert {one.__name__ for one in compiling._CALLED} == functions - {"resize"}
    assert Path(importlib.util.find_spec(resizing.__name__).origin).name == "resizing.py"
