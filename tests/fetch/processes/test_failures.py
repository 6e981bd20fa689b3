"""Exceptions of the user's code in a worker reach the loop that waits for the batch; the next epoch works."""

import _thread
import itertools
import resource
import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import LoaderError, SampleError
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.processes.workers import died
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, FaultyStream, OwnError, Unpicklable, indices, loader, once, plain
from tests.fetch.ways import PROCESSES, WORKERS

OTHERS = [
    pytest.param({"start_method": "forkserver"}, id="forkserver-fresh"),
    pytest.param({"start_method": "fork", "persistent_workers": True}, id="fork-persistent"),
    pytest.param({"start_method": "spawn", "num_workers": 1}, id="spawn"),  # each imports everything
]

pytestmark = pytest.mark.usefixtures("shared_server", "nothing_left")


def fail(error):
    return partial(faulty.fail, error)


def check_note(error, options, where):
    if options.get("worker_type") != "thread":
        assert where in error.__notes__[0]


@pytest.mark.parametrize(
    ("options", "index"),
    [pytest.param(*ways.values, 9, id=f"{ways.id}-9") for ways in WORKERS]
    + [pytest.param(*ways.values, 0, id=f"{ways.id}-0") for ways in [*WORKERS, *OTHERS]],
)
def test_an_exception_of_a_sample(options, index, tmp_path):
    """The very first sample may fail, too: the next epoch settles the form."""
    slow = None if index else partial(time.sleep, 0.02)  # so that the other workers wait for the form
    one = loader(Faulty(actions={index: once(tmp_path, fail(OwnError("gone")))}, always=slow), **options)
    with pytest.raises(SampleError, match="the dataset raised OwnError: gone") as caught:
        list(one)
    error = caught.value
    assert (error.batch, error.index, error.dataset_index) == (*divmod(index, 4), index)
    assert error.worker in (0, 1)
    assert type(error.__cause__) is OwnError
    assert error.__cause__.args == ("gone",)
    check_note(error.__cause__, options, "in __getitem__")
    assert indices(one) == plain()
    one.close()


def without_room(error=None):
    """Let this process write no file, nor a memory file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if error is not None:
        raise error


@pytest.mark.parametrize("at", ["in a batch", "at the start"])
def test_an_error_that_is_too_long_for_the_memory_that_is_left(at, capfd):
    fails = partial(without_room, OwnError("x" * 100_000))
    if at == "in a batch":
        one = loader(Faulty(actions={9: fails}), start_method="fork")
        told = r"worker \d cannot continue: LoaderError: a message could not be sent: .*File too large"
    else:
        one = loader(Faulty(), start_method="fork", worker_init_fn=lambda _: fails())
        told = r"worker \d could not start: LoaderError: OwnError: xxx"
    with pytest.raises(LoaderError, match=told):
        list(one)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("options", PROCESSES)
def test_an_exception_class_that_only_goes_by_value(options):
    if options.get("start_method") != "fork":
        pytest.importorskip("cloudpickle", reason="only cloudpickle pickles classes by value")

    class Hidden(Exception):
        pass

    class Own(Faulty):
        def __getitem__(self, index):
            if index == 5:
                raise Hidden(index)
            return super().__getitem__(index)

    one = loader(Own(), **options)
    with pytest.raises(SampleError, match="Hidden: 5") as caught:
        list(one)
    cause = caught.value.__cause__
    assert type(cause).__name__ == "Hidden"
    assert cause.args == (5,)
    if options["start_method"] == "forkserver":
        assert type(cause) is Hidden  # sent by value from this process, which recognizes it
    one.close()


def collate_badly(samples):
    if samples[0][0] == 8:
        raise OwnError("not these")
    return np.stack(samples)


class BadStream(FaultyStream):
    def __iter__(self):
        raise OwnError("no items")


def fail_anew(kind, *arguments):
    """Raise a new exception, because one that is kept would keep the frames of its traceback."""
    raise kind(*arguments)


LONG, CODE = partial(fail_anew, OwnError, "x" * (1 << 20)), partial(faulty.fail_with_code, 7)
CTRL_C, EXIT = partial(fail_anew, KeyboardInterrupt), partial(fail_anew, GeneratorExit)
FAILURES = {
    "sample": (Faulty(actions={5: LONG}), r"dataset index 5.*OwnError: x", OwnError, "__getitem__"),
    "interrupt": (Faulty(actions={6: CTRL_C}), "KeyboardInterrupt", KeyboardInterrupt, "__getitem__"),
    "exit": (Faulty(actions={6: EXIT}), "GeneratorExit", GeneratorExit, "__getitem__"),
    "iter": (BadStream(), "batch 0.*OwnError: no items", OwnError, "__iter__"),
    "what does not pickle": (
        Faulty(actions={5: CODE}), "index 5.*Unpicklable: code 7: no way", Unpicklable, "fail_with_code",
    ),
    "collate_fn": (Faulty(), "batch 2.*collate_fn raised OwnError: not these", OwnError, "collate_badly"),
}  # fmt: skip
"""A dataset, what the error says, the type of its cause, and the function that raised it."""


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize("failure", FAILURES)
def test_an_exception_arrives_with_its_cause_and_place_in_every_epoch(options, failure):
    dataset, message, kind, function = FAILURES[failure]
    one = loader(dataset, collate_fn=collate_badly if failure == "collate_fn" else None, **options)
    for _ in range(2):
        with pytest.raises(SampleError, match=message) as caught:
            list(one)
        cause = caught.value.__cause__
        assert type(cause) is kind
        check_note(cause, options, f"in {function}")
        if failure == "sample":
            assert len(str(cause)) == 1 << 20
        if failure == "iter":
            assert caught.value.worker == 0
        if failure == "what does not pickle":
            assert (str(cause), cause.code) == ("code 7: no way", 7)
    one.close()


class BadWidth(Faulty):
    def __getitem__(self, index):
        return {"x": np.zeros(3 if index != 6 else 4)}


@pytest.mark.parametrize("options", WORKERS)
def test_a_sample_that_does_not_fit_is_named_with_its_field(options):
    one = loader(BadWidth(), **options)
    with pytest.raises(SampleError, match=r"expected shape \(3,\).*, got \(4,\)") as caught:
        list(one)
    error = caught.value
    assert (error.batch, error.index, error.dataset_index, error.field) == (1, 2, 6, "x")
    assert error.worker in (0, 1)
    assert not hasattr(error, "__notes__")  # a traceback within the loader would add nothing
    one.close()


@pytest.mark.parametrize("options", WORKERS)
def test_an_exception_of_a_later_item(options, tmp_path):
    one = loader(FaultyStream(actions={13: once(tmp_path, fail(OwnError("item")))}), **options)
    with pytest.raises(SampleError, match=r"batch 3.*OwnError: item") as caught:
        list(one)
    assert (caught.value.worker, caught.value.index) == (1, 2)
    assert sorted(itertools.chain(*indices(one))) == list(range(24))
    one.close()


def begin_badly(number):
    if number == 1:
        raise ConnectionRefusedError("nobody listens") from KeyError("deeper")


class Unborn(Faulty):
    def __setstate__(self, state):
        raise OwnError("cannot be made again")


class WithoutGenerators(Faulty):
    """A dataset in whose processes NumPy's generators cannot be imported, as under a limit of memory."""

    def __setstate__(self, state):
        self.__dict__.update(state)
        sys.modules["numpy.random"] = None


SLOW = Faulty(always=partial(time.sleep, 0.01)), "nobody listens", ConnectionRefusedError, "begin_badly"
UNBORN = Unborn(), "OwnError: cannot be", OwnError, "__setstate__"


@pytest.mark.parametrize(
    ("options", "failure"),
    [(*options.values, SLOW) for options in WORKERS]
    + [({"start_method": "forkserver", "persistent_workers": kept}, UNBORN) for kept in (False, True)],
)
def test_an_exception_of_worker_init_fn_or_while_unpickling(options, failure):
    dataset, message, kind, function = failure
    one = loader(dataset, worker_init_fn=None if failure is UNBORN else begin_badly, **options)
    for _ in range(2):
        with pytest.raises(LoaderError, match=rf"worker \d could not start: .*{message}") as caught:
            list(one)
        assert type(caught.value.__cause__) is kind
        check_note(caught.value.__cause__, options, f"in {function}")
    one.close()


def test_a_worker_that_cannot_import_the_generators_could_not_start():
    with pytest.raises(LoaderError, match=r"worker \d could not start: .*numpy\.random"):
        list(loader(WithoutGenerators(), num_workers=1, start_method="spawn"))


def close_output(number):
    sys.stdout.close()
    sys.stderr = None


@pytest.mark.parametrize("options", PROCESSES)
def test_a_worker_without_output_can_still_fail(options):
    one = loader(Faulty(actions={5: fail(OwnError("gone"))}), worker_init_fn=close_output, **options)
    with pytest.raises(SampleError, match="OwnError: gone"):
        list(one)
    one.close()


def test_batches_that_lose_equally_many_samples_all_say_so():
    """The second one is of the same form as the first, and has nothing else to tell."""
    bad = dict.fromkeys((1, 5), partial(fail_anew, ValueError, "bad"))
    one = loader(Faulty(8, bad), start_method="fork", num_workers=1, on_bad="skip")
    assert indices(one) == [[0, 2, 3], [4, 6, 7]]
    assert one.stats().skipped == 2


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_worker_without_items_keeps_nobody_waiting(kind):
    class Second(FaultyStream):
        def __iter__(self):
            return iter(()) if faulty.get_worker_info().id == 0 else super().__iter__()

    one = loader(Second(), worker_type=kind)
    for _ in range(2):
        assert sorted(itertools.chain(*indices(one))) == list(range(1, 24, 2))


def test_a_worker_that_cannot_watch_its_parent_says_so(monkeypatch, capfd):
    def start(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start)
    with pytest.raises(LoaderError, match=r"worker [01] could not start: .* the end of the parent"):
        list(loader(Faulty(), start_method="fork"))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("code", "deaths", "held", "message"),
    [
        (3, 0, [], "exited with code 3 while it was idle"),
        (3, 1, [], "exited with code 3 while it was idle"),
        (
            *(3, 2, []),
            "exited with code 3 while it was idle, the 2nd in a row to die before it delivered anything",
        ),
        (
            *(-9, 0, [Job(4, [7, 8])]),
            "was ended by signal 9 (SIGKILL) while it was fetching batch 4 (samples 7, 8); "
            "the system may have run out of memory",
        ),
        (
            *(-11, 3, [Job(4, range(5), deaths=2), Job(6, range(5, 10), deaths=1)]),
            "was ended by signal 11 (SIGSEGV) while it was fetching batches 4, 6, the 2nd worker to die at "
            "batch 4 (samples 0, 1, 2, 3, 4, 5, 6, 7 and 2 more)",
        ),
        (
            *(None, 4, [Job(0, range(8), deaths=1), Job(1, [], deaths=2)]),
            "closed its pipe while it was fetching batches 0, 1, the 4th in a row to die before it delivered "
            "anything (samples 0, 1, 2, 3, 4, 5, 6, 7)",
        ),
    ],
)
def test_the_error_for_a_dead_worker_says_what_it_did(code, deaths, held, message):
    error = died(SimpleNamespace(number=1, child=SimpleNamespace(pid=77), deaths=deaths), code, held)
    assert str(error) == f"worker 1 (process 77) {message}"
    assert (error.pid, error.signal) == (77, -code if code and code < 0 else None)
    assert list(error.indices) == [index for job in held for index in job.indices]
