"""The fork server of a loader: what it imports, when it is replaced, and what it leaves: nothing."""

import gc
import importlib
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from multiprocessing import shared_memory, spawn
from pathlib import Path

import numpy as np
import pytest

from gpuloader import DataLoader, LoaderError, WorkerError
from gpuloader.fetch.processes import fork_server
from gpuloader.fetch.processes.fork_server import ServedChild
from gpuloader.system import processes
from tests.fakes import is_running, leave_early, no_other_collection, wait_until
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, indices, loader, plain
from tests.fetch.telling import handed, inherited, parent_of, read_segment
from tests.loading import load
from tests.processes import descendants, run_in_fork
from tests.sample_sets import Made

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

SERVED = {"start_method": "forkserver"}
on_a_shared_server = pytest.mark.usefixtures("shared_server")  # where none has to start or end


def run_python(*arguments, folder=None, **environment):
    """Run Python in a folder, where it finds modules; return its output."""
    command, environment = [sys.executable, *arguments], {**os.environ, **environment}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def server_pid(one):
    """Return the process of a loader's fork server."""
    return one._epochs._fetching._server._servers[-1][1].pid


DATASET = """
    import os
    from pathlib import Path

    with open("imports", "a") as file:
        file.write(f"{os.getpid()}\\n")

    class Numbers:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return FACTOR * index

    FACTOR = 1
"""

LOOPS = """
    from gpuloader import DataLoader
    import numbers_dataset, pathlib, sys, warnings

    def load(**options):
        options = {"num_workers": 2, "start_method": "forkserver", **options}
        return DataLoader(numbers_dataset.Numbers(), places="cpu", batch_size=4, **options)

    def read(loader):
        return [int(number) for batch in loader for number in batch]
"""


def write_module(folder, text=DATASET, before=""):
    (folder / "numbers_dataset.py").write_text(before + textwrap.dedent(text))


def program(code):
    return textwrap.dedent(LOOPS) + textwrap.dedent(code)


def run_program(code, folder, **environment):
    return run_python("-c", program(code), folder=folder, **environment)


def run_beside(folder, work):
    """Run a function in a forked child, which finds the modules of a folder; it is given a way to load."""

    def load(**options):
        module = importlib.import_module("numbers_dataset")
        options = {"num_workers": 2, "batch_size": 4, **SERVED, **options}
        return DataLoader(module.Numbers(), places="cpu", **options)

    def child():
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        work(load)

    run_in_fork(child)


def read(one):
    return [int(number) for batch in one for number in batch]


def test_what_the_dataset_needs_is_imported_once_for_all_workers_and_epochs(tmp_path):
    write_module(tmp_path, before="print('imported')\n")
    code = """
        one = load(num_workers=4)
        for epoch in range(3):
            assert read(one) == list(range(8))
    """
    # The program itself, and the server.
    assert run_program(code, tmp_path) == ["imported", "imported"]
    assert len((tmp_path / "imports").read_text().split()) == 2


def test_a_changed_module_reaches_the_next_loader_and_no_running_one(tmp_path):
    write_module(tmp_path)

    def work(load):
        one = load()
        assert sum(read(one)) == 28
        write_module(tmp_path, DATASET.replace("FACTOR = 1", "FACTOR = 10"))
        assert (sum(read(one)), sum(read(load()))) == (28, 280)

    run_beside(tmp_path, work)


def test_another_module_of_the_same_name_is_not_mistaken_for_it(tmp_path):
    for name, factor in (("one", 1), ("other", 10)):
        (tmp_path / name).mkdir()
        write_module(tmp_path / name, DATASET.replace("FACTOR = 1", f"FACTOR = {factor}"))

    def work(load):
        assert sum(read(load())) == 28
        sys.path[0] = str(tmp_path / "other")
        del sys.modules["numbers_dataset"]
        assert sum(read(load())) == 280

    run_beside(tmp_path / "one", work)


def test_a_program_that_runs_as_a_module_is_not_run_again_in_its_workers(tmp_path):
    write_module(tmp_path)
    code = """
        print("begun")
        assert read(load()) == list(range(8)) == read(load(start_method="spawn", num_workers=1))
        print(__spec__.name, pathlib.Path(__file__).name)
    """
    (tmp_path / "training.py").write_text(program(code))
    assert run_python("-m", "training", folder=tmp_path) == ["begun", "training training.py"]


def test_a_module_that_starts_a_thread_is_left_to_the_workers(tmp_path):
    """A fork copies no thread, and whatever lock it holds stays locked."""
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n"
    write_module(tmp_path, before=thread)

    def work(load):
        one = load()
        with pytest.warns(
            RuntimeWarning, match="^importing numbers_dataset starts threads.*persistent_workers=True"
        ):
            assert read(one) == list(range(8))
        assert read(one) == list(range(8))

    run_beside(tmp_path, work)
    assert len((tmp_path / "imports").read_text().split()) == 1 + 1 + 2 * 2  # program, first server, workers


def test_a_module_that_cannot_be_imported_there_is_the_workers_error(tmp_path):
    write_module(tmp_path)

    def work(load):
        one = load()
        (tmp_path / "numbers_dataset.py").unlink()
        with pytest.raises(
            LoaderError, match=r"^worker [01] could not start: ModuleNotFoundError: No module named"
        ):
            read(one)

    run_beside(tmp_path, work)


def test_workers_have_the_programs_present_folder_environment_and_path(tmp_path, monkeypatch):
    def seen():
        [batch] = load(Made(inherited, 2), batch_size=2, num_workers=1, **SERVED)
        return [set(column) for column in batch]

    assert seen()[:3] == [{os.getcwd()}, {"none"}, {""}]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOR", "green")
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    assert seen() == [{str(tmp_path)}, {"green"}, {""}, {"/nowhere"}]


def test_a_server_that_was_replaced_ends_once_its_workers_have(monkeypatch):
    one = load(Made(inherited, 4), batch_size=2, num_workers=1, prefetch_factor=1, **SERVED)
    running = iter(one)
    found = [next(running)]
    for color in ("red", "green"):
        monkeypatch.setenv("COLOR", color)
        assert [{*batch[1]} for batch in one] == [{color}] * 2
    servers = one._epochs._fetching._server._servers
    assert len(servers) == 2  # also the first, which has the worker of an epoch that runs
    found += running
    assert [{*batch[1]} for batch in found] == [{"none"}] * 2
    monkeypatch.delenv("COLOR")
    list(one)
    assert len(servers) == 1


def lower_the_limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


CHANGES = [
    partial(os.umask, 0o077),
    partial(os.nice, 1),
    lower_the_limit,
    lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
    *([partial(os.setegid, 12345)] if os.getuid() == 0 else []),  # gives up privileges
]


def test_workers_follow_the_umask_niceness_limits_cores_and_privileges_of_the_program():
    def child():
        one = load(Made(handed, 2), batch_size=2, num_workers=1, **SERVED)
        told = [[column[0] for column in batch] for batch in one]
        assert told == [list(handed(0))]
        for change in CHANGES:
            before = fork_server._inherited()
            change()
            assert fork_server._inherited() != before  # so that a loader starts another server
        (seen,) = ([column[0] for column in batch] for batch in one)
        assert seen == list(handed(0)) != told[0]

    run_in_fork(child)


@on_a_shared_server
def test_a_server_keeps_no_descriptor_of_workers_that_have_ended():
    one = load(Made(parent_of, 2), batch_size=2, num_workers=1, **SERVED)

    def count():
        return len(os.listdir(f"/proc/{server_pid(one)}/fd"))

    list(one)
    wait_until(lambda: not descendants(server_pid(one)))
    most = count()
    for _ in range(3):
        list(one)
    wait_until(lambda: count() <= most)


def opened(pid):
    """Return what the descriptors of a process refer to; all process descriptors have one name."""
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(path) for path in folder.iterdir() if path.is_symlink()]


@on_a_shared_server
def test_a_worker_inherits_nothing_that_belongs_to_its_server_or_to_another_worker():
    """An open copy would hide from the loader that the server or the other worker has died."""
    one = loader(Faulty(24), **SERVED, num_workers=3, persistent_workers=True)
    assert indices(one) == plain()
    server = server_pid(one)
    pids = descendants(server)
    assert len(pids) == 3
    sockets = [{name for name in opened(pid) if name.startswith("socket:")} for pid in (server, *pids)]
    ours = {name for name in opened(os.getpid()) if name.startswith("socket:")}
    for number, some in enumerate(sockets):
        assert some
        for others in (ours, *sockets[:number]):
            assert not some & others
    # Of the server, whose end it watches; not of the loader nor of another worker.
    assert [opened(pid).count("anon_inode:[pidfd]") for pid in pids] == [1, 1, 1]


def test_a_server_that_was_killed_is_replaced():
    one = loader(Faulty(24), **SERVED)
    assert indices(one) == plain()
    before = server_pid(one)
    faulty.end(before)
    assert indices(one) == plain()
    assert server_pid(one) != before


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_the_death_of_a_worker_while_the_program_ignores_its_children_claims_no_exit_code(method):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(WorkerError, match=r"closed its pipe while it was fetching batch(es)? 3"):
            list(loader(Faulty(actions={13: faulty.kill}), start_method=method))
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("ending", ["break", "cycle"])
def test_a_server_ends_with_its_loader(ending):
    one = loader(Faulty(96), **SERVED)
    leave_early(one, ending)
    server = server_pid(one)
    assert is_running(server)
    if ending == "cycle":
        one.itself = one
    del one
    gc.collect()
    wait_until(lambda: not is_running(server))


def test_workers_end_with_their_server():
    one = loader(Faulty(4000), **SERVED)
    epoch = iter(one)
    next(epoch)
    faulty.end(server_pid(one))
    with pytest.raises(LoaderError, match=r"worker \d \(process"):
        list(epoch)


@pytest.mark.parametrize(("python", "code"), [("/bin/false", 1), ("/nowhere/python", 255)])
def test_a_server_that_cannot_start_is_one_error(monkeypatch, python, code):
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode(python))
    with pytest.raises(LoaderError, match=f"the fork server exited with code {code} while it started worker"):
        list(loader(Faulty(4), **SERVED))


def test_a_server_with_too_many_open_files_refuses_one_worker_and_goes_on():
    one = loader(Faulty(24), **SERVED, num_workers=1, persistent_workers=True)
    assert indices(one) == plain()
    server = server_pid(one)
    used = {int(name) for name in os.listdir(f"/proc/{server}/fd")}
    least = min(set(range(len(used) + 1)) - used)
    another = loader(Faulty(24), **SERVED, num_workers=1)
    another._epochs._fetching._server = one._epochs._fetching._server
    before = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (least, before[1]))
    with pytest.raises(LoaderError, match=r"worker 0 could not be started: .*Too many open files"):
        list(another)
    resource.prlimit(server, resource.RLIMIT_NOFILE, before)
    assert indices(another) == plain() == indices(one)
    assert server_pid(one) == server
    one.close()


def test_a_forked_program_has_a_server_of_its_own():
    one = loader(Faulty(24), **SERVED)
    assert indices(one) == plain()
    control, _, _ = one._epochs._fetching._server._servers[-1]

    def child():
        assert control.fileno() == -1
        assert indices(one) == plain()

    run_in_fork(child)
    assert indices(one) == plain()


@on_a_shared_server
def test_a_shared_memory_segment_outlives_the_workers_that_attach_to_it():
    """They have the program's resource tracker, not one of their own that would unlink it."""
    segment = shared_memory.SharedMemory(create=True, size=4)
    try:
        segment.buf[:4] = bytes(range(4))
        one = load(Made(partial(read_segment, segment.name), 4), batch_size=4, num_workers=2, **SERVED)
        for _ in range(2):
            assert [batch.tolist() for batch in one] == [[0, 1, 2, 3]]
    finally:
        segment.close()
        segment.unlink()


def socket_names(pid):
    """Return the names of a process's sockets, to which others on the machine could connect."""
    sockets = set(opened(pid))
    named = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [words[7] for words in named if len(words) > 7 and f"socket:[{words[6]}]" in sockets]


def test_a_killed_program_leaves_no_file_and_no_process(tmp_path):
    code = """
        import os, sys, time
        from tests.fetch import faulty
        one = faulty.loader(faulty.Faulty(100_000), start_method="forkserver")
        for number, batch in enumerate(one):
            if number == 3:
                print(*faulty.offspring(os.getpid()), flush=True)
            time.sleep(0.01)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        pids = [int(word) for word in running.stdout.readline().split()]
        try:
            named = [name for pid in [running.pid, *pids] for name in socket_names(pid)]
        finally:
            running.kill()
            running.wait()
    assert named == []
    assert len(pids) == 4  # the resource tracker of multiprocessing, the server and two workers
    wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert list(tmp_path.iterdir()) == []


@on_a_shared_server
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_persistent_workers_end_with_their_loader(method):
    """At once, not when the garbage collector finds a cycle."""
    others = faulty.offspring()
    one = loader(Faulty(24), start_method=method, persistent_workers=True)
    assert indices(one) == plain()
    workers = faulty.offspring() - others
    assert len(workers) == 2
    with no_other_collection():
        del one
        wait_until(lambda: not any(map(is_running, workers)))


def by_numpy(matrix):
    return (matrix @ matrix).sum()


def by_torch(matrix):
    import torch

    tensor = torch.from_numpy(matrix)
    return (tensor @ tensor).sum() + torch.nn.functional.relu(tensor).sum()


def by_paddle(matrix):
    import paddle

    tensor = paddle.to_tensor(matrix, place=paddle.CPUPlace())
    return (tensor @ tensor).sum()


def product(compute, index):
    """Compute with a matrix large enough for a library to compute in parallel."""
    return float(compute(np.full((256, 256), index, np.float32)))


@pytest.mark.parametrize(
    ("package", "compute"), [("numpy", by_numpy), ("torch", by_torch), ("paddle", by_paddle)]
)
def test_a_forked_worker_computes_after_its_program_has(package, compute):
    """OpenMP's threads do not survive a fork, and waiting for them lasts forever."""
    pytest.importorskip(package)
    expected = [product(compute, index) for index in range(4)]
    dataset = Made(partial(product, compute), 4)
    one = load(dataset, batch_size=2, num_workers=2, start_method="fork", timeout=60)
    np.testing.assert_allclose([number for batch in one for number in batch], expected, rtol=1e-5)


# What the loader holds of a worker that the server has forked.


@pytest.fixture
def child():
    """A handle whose server is the test: it holds the other end of `status`."""
    ours, theirs = socket.socketpair()
    with theirs:
        handle = ServedChild(1, ours.detach())
        handle.theirs = theirs
        yield handle
        theirs.close()
        handle.end()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_one_that_hangs_in_the_kernel_is_not_waited_for_forever(method, monkeypatch):
    with processes.starting():
        child = processes.start_child(method, "hangs", time.sleep, 100)
    monkeypatch.setattr(processes, "_LONGEST_DEATH", 0.05)
    monkeypatch.setattr(child, "kill", lambda: None)
    child.end()
    os.kill(child.pid, signal.SIGKILL)
    wait_until(child._is_gone)


@pytest.mark.parametrize("told", [b"", b"\0"], ids=["nothing", "half"])
def test_there_is_none_if_the_server_died_first(child, told):
    child.theirs.sendall(told)
    child.theirs.close()
    for _ in range(2):
        assert child.exit_code(10) is None


def test_one_of_ours_is_waited_for_and_closed_once(child):
    ending = threading.Timer(0.05, child.theirs.close)
    ending.start()
    for _ in range(2):
        child.end()
        assert child.released
    ending.join()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(child.sentinel)
