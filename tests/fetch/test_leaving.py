"""Leaving an epoch early, in every possible way: in bounded time, silently, with nothing left behind."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import pytest

from gpuloader import DataLoader, LoaderError
from gpuloader.epoch.epoch import Epoch
from gpuloader.fetch.processes import fork_server, workers
from gpuloader.fetch.processes.messages import Kind
from gpuloader.system import processes
from tests.fakes import is_running, leave_early, run_threads, wait_until
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, FaultyStream, indices, loader, plain
from tests.fetch.ways import FORK, FORKSERVER, PROCESSES, THREAD, WORKERS
from tests.processes import run_in_fork

pytestmark = pytest.mark.usefixtures("shared_server", "nothing_left")


LEFT = [
    (FORKSERVER, Faulty, "break closed cycle"),
    (FORK, Faulty, "break exception dropped cycle"),
    (THREAD, Faulty, "break dropped closed"),
    (FORKSERVER, FaultyStream, "break"),
    (FORK, FaultyStream, "break"),
    (THREAD, FaultyStream, "break"),
]


@pytest.mark.parametrize(
    ("options", "kind", "ending"),
    [
        pytest.param(*ways.values, kind, ending, id=f"{ways.id}-{kind.__name__}-{ending}")
        for ways, kind, endings in LEFT
        for ending in endings.split()
    ],
)
def test_an_epoch_is_left(options, kind, ending):
    one = loader(kind(96), **options)
    assert len(indices(one)) == 24
    leave_early(one, ending)
    gc.collect()
    assert len(indices(one)) == 24
    if ending == "cycle":
        del one  # without close()
    else:
        one.close()


@pytest.mark.parametrize("options", PROCESSES)
def test_a_collection_ends_workers_before_it_drops_their_links(options, monkeypatch):
    """A socket that is dropped while open warns. Collections change the order in which objects go."""
    send = workers.send
    monkeypatch.setattr(workers, "send", lambda *arguments: (gc.collect(), send(*arguments))[1])
    one = loader(Faulty(40), **options | {"persistent_workers": True})
    indices(one)
    cycle = [one]
    cycle.append(cycle)
    del one, cycle
    gc.collect()


@pytest.mark.parametrize("options", WORKERS)
def test_the_loader_goes_before_its_epoch(options):
    one = loader(Faulty(), **options)
    epoch = iter(one)
    got = [next(epoch)]
    del one
    gc.collect()
    assert indices([*got, *epoch]) == plain()


@pytest.mark.parametrize("options", PROCESSES)
def test_a_worker_that_is_slow_is_not_waited_for(options, monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 0.2)  # for which alone it is waited for
    one = loader(Faulty(actions={4: partial(time.sleep, 1000)}), **options)
    for _ in one:
        break
    one.close()


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize("kind", [Faulty, FaultyStream])
def test_two_epochs_of_one_loader_at_once(options, kind):
    one = loader(kind(), **options)
    expected = indices(one)
    first, second = iter(one), iter(one)
    got = [*itertools.chain(*zip(first, second, strict=False)), *second]
    assert indices(got[::2]) == expected
    assert indices(got[1::2]) == expected
    assert indices(one) == expected
    one.close()


@pytest.mark.parametrize("options", PROCESSES[:1])
def test_of_two_epochs_at_once_the_workers_of_one_persist(options):
    one, before = loader(Faulty(), **options), faulty.offspring()
    for _ in range(2):
        for first, second in zip(one, one, strict=True):
            assert first[:, 0].tolist() == second[:, 0].tolist()
        workers = faulty.offspring() - before
        wait_until(lambda workers=workers: sum(map(is_running, workers)) == 2)
    one.close()
    wait_until(lambda: not any(map(is_running, workers)))


@pytest.mark.parametrize("options", PROCESSES)
def test_several_threads_loop_over_one_loader_or_share_an_epoch(options):
    one = loader(Faulty(100), **options)
    results, shared, epoch = [], [], iter(loader(Faulty(200), **options))
    run_threads(lambda: results.extend(indices(one) for _ in range(2)), 3)
    one.close()
    assert results == [plain(100)] * 6
    run_threads(lambda: shared.extend(indices(epoch)), 3)
    assert sorted(shared) == plain(200)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("options", WORKERS)
def test_a_fork_in_the_middle_of_an_epoch(options):
    before = set(processes._links)
    one = loader(Faulty(80), **options)
    epoch = iter(one)
    got = [next(epoch)]
    links = processes._links - before
    assert len(links) == (2 if "start_method" in options else 0)

    def child():
        assert {link.fileno() for link in links} <= {-1}
        with pytest.raises(LoaderError, match="start a new epoch here"):
            next(epoch)
        for _ in range(2):
            assert indices(one) == plain(80)
        gc.collect()

    run_in_fork(child)
    assert indices([*got, *epoch]) == plain(80)
    assert indices(one) == plain(80)
    one.close()


def run(code, *arguments, prints="done\n", interrupts=0):
    """Run a program that starts with `PREAMBLE`; check its output, and the interrupts on its stderr."""
    done = faulty.run_program(PREAMBLE + textwrap.dedent(code), *arguments)
    assert (done.stdout, done.returncode) == (prints, 0), done.stderr
    assert done.stderr.count("KeyboardInterrupt") == interrupts
    assert interrupts or not done.stderr


def run_and_interrupt(code, *arguments, delay):
    """Run such a program, and send Ctrl-C some time after its first line; return that line.

    The program must show one traceback, whatever it had started.
    """
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        line = program.stdout.readline()
        time.sleep(delay)
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=240)
    # One that arrives while another exception is handled shows both, in one traceback.
    assert errors.count("Traceback") - errors.count("During handling of the above exception") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode == -signal.SIGINT
    return line


PREAMBLE = """
import os, sys, time
from functools import partial
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, FaultyStream, indices, loader, plain
method, persistent = sys.argv[1], sys.argv[2] == "True"
kind = {"worker_type": "thread"} if method == "thread" else {"start_method": method}
make = partial(loader, persistent_workers=persistent, **kind)
"""


@pytest.mark.parametrize(
    ("method", "states"),
    [
        ("forkserver", "middle idle respawning"),
        ("fork", "middle hanging handler"),
        ("thread", "middle hanging"),
    ],
)
def test_the_interpreter_exits_in_silence(method, states):
    code = """
        import signal
        held = []
        for state in STATES:
            if state == "handler":
                signal.signal(signal.SIGTERM, lambda *_: None)  # a forked worker must not keep this handler
            dataset = Faulty(400, {6: partial(time.sleep, 1.5)} if state == "hanging" else None)
            respawns = "respawn" if state == "respawning" else "raise"
            persists = state in ("idle", "respawning", "handler")
            one = make(dataset, on_worker_death=respawns, persistent_workers=persists)
            epoch = iter(one)
            held += one, epoch, list(epoch) if state == "idle" else [next(epoch)]
        print("done")
    """
    run(code.replace("STATES", repr(states.split())), method, "False")


def test_a_forked_child_exits_without_disturbing_the_parent():
    """The child leaves with sys.exit, so that all exit handlers run."""
    code = """
        for method in ("forkserver", "fork"):
            one = make(Faulty(400), start_method=method)
            epoch = iter(one)
            got = [next(epoch)]
            pid = os.fork()
            if pid == 0:
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert indices([*got, *epoch]) == plain(400) == indices(one)
        print("done")
    """
    run(code, "fork", "True")


@pytest.mark.parametrize(
    ("method", "persistent"), [("forkserver", "True"), ("fork", "False"), ("thread", "False")]
)
def test_ctrl_c_in_the_middle_of_an_epoch(method, persistent):
    code = """
        one = make(Faulty(100_000, {4000: partial(time.sleep, 1)}))
        for number, batch in enumerate(one):
            if number == 10:
                print(*faulty.offspring(), flush=True)
    """
    pids = [int(word) for word in run_and_interrupt(code, method, persistent, delay=0.02).split()]
    assert len(pids) >= (2 if method != "thread" else 0)
    wait_until(lambda: not any(is_running(pid) for pid in pids))


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.25])
def test_ctrl_c_while_the_fork_server_starts_shows_one_traceback(delay):
    code = """
        one = make(Faulty(100_000))
        print("begun", flush=True)
        list(one)
    """
    assert run_and_interrupt(code, "forkserver", "False", delay=delay) == "begun\n"


def test_ctrl_c_that_hits_a_new_process_first_is_silent_there():
    """A forked process has the program's handler until it chooses its own; before, it hears no Ctrl-C."""
    code = """
        import signal
        import numpy as np
        from gpuloader import DataLoader
        os.register_at_fork(after_in_child=partial(signal.raise_signal, signal.SIGINT))
        print(len(list(make(Faulty(40)))))
        reading = DataLoader.from_generator(capacity=2, return_list=True, use_multiprocess=True)
        reading.set_batch_generator(lambda: ([np.full((4, 1), n)] for n in range(8)), places="cpu")
        print(len(list(reading)))
    """
    run(code, "fork", "False", prints="10\n8\n")


def test_ctrl_c_while_workers_end_leaves_no_descriptor(monkeypatch):
    def close_all(workers, grace, ending=workers.close_all):
        ending(workers, grace)
        if workers:
            raise KeyboardInterrupt

    monkeypatch.setattr(workers, "close_all", close_all)
    with pytest.raises(KeyboardInterrupt):
        list(loader(Faulty(), start_method="fork"))


def test_ctrl_c_at_the_end_of_an_epoch_shows_nothing_else_and_the_epoch_is_closed_again(monkeypatch):
    closed = []

    def close(epoch, ending=Epoch.close):
        closed.append(id(epoch))
        if len(closed) == 1:
            raise KeyboardInterrupt
        ending(epoch)

    monkeypatch.setattr(Epoch, "close", close)
    with pytest.raises(KeyboardInterrupt) as caught:
        list(loader(Faulty(), worker_type="thread"))
    assert caught.value.__context__ is None
    assert "gpuloader-worker-0" in {thread.name for thread in threading.enumerate()}
    caught.value.__traceback__ = None  # it holds the iterator
    del caught
    gc.collect()
    assert closed == closed[:1] * 2
    assert "gpuloader-worker-0" not in {thread.name for thread in threading.enumerate()}


def test_processes_of_the_users_own_fork_server_can_be_interrupted():
    """A program has only one fork server, so its own processes come from the one that loads our modules."""
    code = """
        import multiprocessing, signal
        list(make(Faulty(40)))
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=time.sleep, args=(60,))
        process.start()
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
        assert process.exitcode == 1, process.exitcode
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
        print("done")
    """
    run(code, "forkserver", "False", interrupts=1)


@pytest.mark.parametrize(
    ("start_method", "home", "name"),
    [("fork", processes, "fork_child"), ("forkserver", fork_server.ForkServer, "fork")],
)
@pytest.mark.parametrize("before", [0, 1])
def test_an_interrupt_while_workers_start_leaves_none(monkeypatch, start_method, home, name, before):
    """Ctrl-C arrives when a process exists, and nobody has noted that yet."""
    start, started = getattr(home, name), []

    def interrupted(*arguments, **options):
        child = start(*arguments, **options)
        started.append(child)
        if len(started) == before + 1:
            signal.raise_signal(signal.SIGINT)
        return child

    one = loader(Faulty(40), start_method=start_method)
    with monkeypatch.context() as patch:
        patch.setattr(home, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(one)
    assert len(started) > before
    assert indices(one) == plain(40)


def test_an_interrupt_loses_no_batch(tmp_path):
    """An epoch that is interrupted while it waits can continue."""
    caught = tmp_path / "caught"
    epoch = iter(loader(Faulty(40, {9: partial(wait_until, caught.exists)})))
    got = [next(epoch), next(epoch)]
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(epoch)
    timer.join()
    caught.touch()
    assert indices([*got, *epoch]) == plain(40)


@pytest.mark.parametrize("name", ["receive", "send"])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_interrupt_in_the_middle_of_a_message_ends_the_epoch(monkeypatch, name, persistent):
    """Half a message is worse than none: what follows would be taken for the rest of it."""
    one, before = loader(Faulty(), start_method="fork", persistent_workers=persistent), faulty.offspring()
    epoch, real, met = iter(one), getattr(workers, name), []

    def interrupted(*arguments):
        found = real(*arguments)
        if not met and (name == "receive" or arguments[1].kind == Kind.TASK):
            met.append(name)
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(workers, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(epoch)
    started = faulty.offspring() - before
    with pytest.raises(LoaderError, match="interrupted in the middle of a message"):
        next(epoch)
    assert list(epoch) == []
    wait_until(lambda: not any(is_running(pid) for pid in started))  # nor do they persist
    assert indices(one) == plain()
    one.close()


def test_ctrl_c_while_a_reader_reads_does_not_name_the_reader():
    def reader():
        yield [[0]]
        raise KeyboardInterrupt

    one = DataLoader.from_generator(capacity=1, use_double_buffer=False)
    one.set_batch_generator(reader, places="cpu")
    with pytest.raises(KeyboardInterrupt) as caught:
        list(one)
    assert not hasattr(caught.value, "__notes__")
