"""Resizing is compiled once that pays, in a thread of its own; where it cannot be, Pillow does it."""

import threading
import types

import numpy as np
import pytest

from gpuloader import DataLoader, LoaderError
from gpuloader.sources.images import resampling as compiling
from gpuloader.sources.images import resizing
from gpuloader.sources.images.resampling import LateResizer, compile_function, is_cached
from gpuloader.transforms import Normalize
from tests.fakes import wait_until
from tests.fetch.faulty import run_program
from tests.processes import run_in_fork


@pytest.fixture
def compiling_by(monkeypatch):
    """Compile by a function, from the cache or not; return the names of the threads that did so."""
    calls = []

    def choose(compile_resizer=lambda: resizing.resize, *, is_cached=True):
        def compile_once(name):
            if name == "look_up":
                return resizing.look_up
            calls.append(threading.current_thread().name)
            return compile_resizer()

        monkeypatch.setattr(compiling, "is_cached", lambda: is_cached)
        monkeypatch.setattr(compiling, "compile_function", compile_once)
        return calls

    return choose


@pytest.fixture
def slow(compiling_by):
    """Let what is cached be compiled until the second event is set; the first says that it has begun."""
    begun, may_end = threading.Event(), threading.Event()

    def compile_slowly():
        begun.set()
        may_end.wait(60)
        return resizing.resize

    calls = compiling_by(compile_slowly)
    yield begun, may_end
    assert len(calls) == 1


def test_code_in_the_cache_is_loaded_after_few_images(compiling_by):
    calls = compiling_by()
    late = LateResizer(load_after=3, compile_after=10**9)
    assert [late.find() for _ in range(3)] == [None] * 3
    wait_until(late.find)
    assert late.find() is resizing.resize
    wait_until(lambda: late.look_up is resizing.look_up)
    assert calls == ["gpuloader-compiler"]


def test_other_code_is_compiled_after_many(compiling_by):
    calls = compiling_by(is_cached=False)
    late = LateResizer(load_after=3, compile_after=40)
    assert [late.find() for _ in range(4)] == [None] * 4
    wait_until(lambda: not late._turn.locked())  # it has looked
    assert [late.find() for _ in range(36)] == [None] * 36
    assert not calls
    wait_until(late.find)
    assert calls == ["gpuloader-compiler"]


def test_pillow_resizes_until_it_is_done(slow):
    begun, may_end = slow
    late = LateResizer(load_after=0)
    late.find()
    assert begun.wait(60)
    assert [late.find() for _ in range(5)] == [None] * 5
    may_end.set()
    wait_until(late.find)


def test_what_cannot_be_compiled_is_not_tried_again(compiling_by):
    calls = compiling_by(lambda: None)
    late = LateResizer(load_after=0)
    late.find()
    wait_until(lambda: calls)
    assert [late.find() for _ in range(9)] == [None] * 9
    assert len(calls) == 1


def test_without_another_thread_pillow_resizes(compiling_by, monkeypatch):
    def fail(*_):
        raise LoaderError("the system starts no more threads")

    compiling_by()
    monkeypatch.setattr(compiling, "start_thread", fail)
    late = LateResizer(load_after=0)
    assert [late.find() for _ in range(3)] == [None] * 3


def test_forking_waits_so_that_the_child_can_use_numba(slow):
    begun, may_end = slow
    LateResizer(load_after=0).find()
    assert begun.wait(60)
    threading.Timer(0.2, may_end.set).start()
    run_in_fork(lambda: compiling._using_numba.acquire(blocking=False) or pytest.fail("it is held"))
    assert may_end.is_set()


def test_the_end_of_the_program_waits_and_the_package_does_not_import_numba():
    ran = run_program("""
        import sys, time
        import gpuloader
        from gpuloader.sources.images import resampling as compiling
        print('numba' in sys.modules)
        compiling.is_cached = lambda: True
        compiling.compile_function = lambda name: time.sleep(0.3) or print("compiled")
        compiling.LateResizer(load_after=0).find()
        print("ends")
    """)
    assert (ran.stdout, ran.stderr) == ("False\nends\ncompiled\n", "")


@pytest.mark.parametrize(
    "error", [ImportError("no libllvm"), AttributeError("numba.void"), ValueError("numba.__spec__ is None")]
)
def test_with_a_broken_numba_pillow_resizes(monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr(compiling, "import_module", fail)
    assert compile_function("resize") is None
    assert is_cached()  # so that nobody tries again


@pytest.mark.parametrize(
    "error", [RuntimeError("no locator available for file"), EOFError("Ran out of input")]
)
def test_where_the_cache_is_of_no_use_nothing_is_kept(monkeypatch, error):
    numba, asked = pytest.importorskip("numba"), []

    def refuse(*, nogil, cache):
        asked.append((nogil, cache))
        if cache:
            raise error
        compiled = types.SimpleNamespace(compile=lambda signature: None, disable_compile=lambda: None)
        return lambda function: compiled

    monkeypatch.setattr(numba, "njit", refuse)
    assert compile_function("resize") is not None
    assert asked == [(True, True), (True, False)]


def test_what_was_compiled_is_in_the_cache(monkeypatch, tmp_path):
    numba = pytest.importorskip("numba")
    assert compile_function("resize") is not None
    assert is_cached()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert not is_cached()
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert compile_function("resize") is None


def test_arguments_of_other_types_are_converted():
    pytest.importorskip("numba")
    resizer = compile_function("resize")
    pixels, out = np.full((4, 4, 3), 7, np.uint8), np.empty((2, 2, 3), np.uint8)
    for writeable in (True, False):
        pixels.flags.writeable = writeable
        resizer(pixels, (0, 0), (0, 0, 4, 4), (2, 2), (0, 0), np.bool_(True), np.bool_(False), out)
        resizer(pixels, (0, 0), (0.0, 0.5, 4.0, 4.0), (2, 2), (0, 0), 3, True, out)
    assert (out == 7).all()
    assert len(resizer.signatures) == 1
    assert resizer.targetoptions["nogil"]


def test_all_that_it_calls_is_compiled_too():
    functions = {name for name, one in vars(resizing).items() if isinstance(one, types.FunctionType)}
    assert {one.__name__ for one in resizing.CALLED} == functions - {"resize", "look_up"}


@pytest.mark.parametrize("to", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("crop", [None, (3, 4)])
def test_compiled_lookup_normalizes_to_the_same_bits(monkeypatch, to, crop):
    pytest.importorskip("numba")
    images = [np.arange(90, dtype=np.uint8).reshape(5, 6, 3) * 3 + number for number in range(4)]
    steps = [
        Normalize(None, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 1 / 255, to=to, crop=crop, flip=True)
    ]
    late = LateResizer()
    monkeypatch.setattr(compiling, "LATE_RESIZER", late)
    [plain] = DataLoader(images, places="cpu", batch_size=4, seed=1, transforms=steps)
    calls, compiled = [], compile_function("look_up")
    late.look_up = lambda *arrays: calls.append(1) or compiled(*arrays)
    [looked_up] = DataLoader(images, places="cpu", batch_size=4, seed=1, transforms=steps)
    assert calls
    assert looked_up.strides == plain.strides
    assert np.array_equal(looked_up.view(np.uint32), plain.view(np.uint32))
    # Other dtypes are looked up by NumPy.
    calls.clear()
    [half] = DataLoader(images, places="cpu", batch_size=4, transforms=[Normalize(None, dtype="float16")])
    assert (half.dtype, calls) == (np.float16, [])


@pytest.mark.parametrize(("width", "out"), [(221, 299), (102, 374), (77, 1000)])
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_sizes_at_which_a_pixel_has_as_many_weights_as_there_can_be(width, out, kind):
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (1, width, 3), np.uint8)
    made = np.empty((1, out, 3), np.uint8)
    resizing.resize(pixels, (0, 0), (0.0, 0.0, width, 1.0), (1, out), (0, 0), 0, kind == "bicubic", made)
    np.testing.assert_array_equal(
        made, pillow.fromarray(pixels).resize((out, 1), pillow.Resampling[kind.upper()])
    )
