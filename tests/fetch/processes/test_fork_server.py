"""The fork server: what it imports for the workers, when it is replaced, and what it leaves: nothing."""

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from contextlib import suppress
from multiprocessing import shared_memory, spawn
from pathlib import Path

import numpy as np
import pytest

from gpuloader import DataLoader, LoaderError
from gpuloader.fetch.processes import fork_server
from gpuloader.fetch.processes.fork_server import (
    STATUS,
    Forked,
    Request,
    ServedChild,
    ServerGone,
    Surroundings,
    receive_request,
    send_request,
)
from gpuloader.system.processes import wait_for
from tests.fakes import is_running, nothing_left_behind, wait_until
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, indices, loader, plain

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SERVED = {"start_method": "forkserver"}


@pytest.fixture(autouse=True)
def nothing_left():
    with faulty.all_gone():
        yield


@pytest.fixture
def own_server():
    """Run the test with a server of its own, and stop that afterwards."""
    fork_server.stop_servers()
    yield
    fork_server.stop_servers()
    faulty.warm_up.cache_clear()  # the next test starts another


def run_program(code, folder, **environment):
    """Run a program in a folder, where it finds modules; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def server_pid():
    return fork_server._server.process.pid


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
    import numbers_dataset, pathlib

    def load(**options):
        options = {"num_workers": 2, "start_method": "forkserver", **options}
        return DataLoader(numbers_dataset.Numbers(), places="cpu", batch_size=4, **options)

    def read(loader):
        return [int(number) for batch in loader for number in batch]
"""


def write_module(folder, text):
    (folder / "numbers_dataset.py").write_text(textwrap.dedent(text))


def program(code):
    return textwrap.dedent(LOOPS) + textwrap.dedent(code)


def test_what_the_dataset_needs_is_imported_once_for_all_workers_epochs_and_loaders(tmp_path):
    write_module(tmp_path, DATASET)
    run_program(
        program(
            """
            for one in (load(), load()):
                for epoch in range(3):
                    assert read(one) == list(range(8))
            """
        ),
        tmp_path,
    )
    assert len((tmp_path / "imports").read_text().split()) == 2  # the program itself, and the server


def test_a_changed_module_is_imported_anew(tmp_path):
    """As after an edit in a notebook: no worker runs the old code."""
    write_module(tmp_path, DATASET)
    printed = run_program(
        program(
            """
            import importlib, os
            one = load()
            print(sum(read(one)))
            path = pathlib.Path("numbers_dataset.py")
            path.write_text(path.read_text().replace("FACTOR = 1", "FACTOR = 10"))
            importlib.reload(numbers_dataset)
            print(sum(read(load())))
            """
        ),
        tmp_path,
    )
    assert printed == ["28", "280"]


def test_another_module_of_the_same_name_is_not_mistaken_for_it(tmp_path):
    for name, factor in (("one", 1), ("other", 10)):
        (tmp_path / name).mkdir()
        write_module(tmp_path / name, DATASET.replace("FACTOR = 1", f"FACTOR = {factor}"))
    printed = run_program(
        "import os, sys\nsys.path.insert(0, os.path.abspath('one'))\n"
        + program(
            """
            print(sum(read(load())))
            sys.path[0] = os.path.abspath("other")
            del sys.modules["numbers_dataset"]
            import numbers_dataset
            print(sum(read(load())))
            """
        ),
        tmp_path,
    )
    assert printed == ["28", "280"]


def test_a_module_in_an_archive_is_imported_too(tmp_path):
    """It has no file whose time of modification could be compared."""
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("numbers_dataset.py", textwrap.dedent(DATASET))
    code = program("assert read(load()) == list(range(8)) == read(load())")
    run_program("import sys\nsys.path.insert(0, 'modules.zip')\n" + code, tmp_path)
    assert len((tmp_path / "imports").read_text().split()) == 2


def test_a_program_that_runs_as_a_module_is_not_run_again_in_its_workers(tmp_path):
    write_module(tmp_path, DATASET)
    code = """
        print("begun")
        assert read(load()) == list(range(8)) == read(load(start_method="spawn"))
        print(__spec__.name, pathlib.Path(__file__).name)
    """
    (tmp_path / "training.py").write_text(program(code))
    done = subprocess.run(
        [sys.executable, "-m", "training"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("begun\ntraining training.py\n", "", 0)


def test_a_module_that_starts_a_thread_is_left_to_the_workers(tmp_path):
    """A fork copies no thread, and whatever lock it holds stays locked."""
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n"
    write_module(tmp_path, thread + textwrap.dedent(DATASET))
    run_program(program("assert read(load()) == list(range(8)) == read(load())"), tmp_path)
    assert len((tmp_path / "imports").read_text().split()) == 1 + 1 + 2 * 2  # program, first server, workers


def test_a_module_that_cannot_be_imported_there_is_the_workers_error(tmp_path):
    write_module(tmp_path, DATASET)
    printed = run_program(
        program(
            """
            pathlib.Path("numbers_dataset.py").unlink()
            try:
                read(load())
            except Exception as error:
                print(type(error).__name__, error)
            """
        ),
        tmp_path,
    )
    [told] = printed
    assert re.match(r"LoaderError worker [01] could not start: ModuleNotFoundError: No module named", told)


def test_what_a_module_prints_is_printed_once_more_at_most(tmp_path):
    write_module(tmp_path, "print('imported')\n" + textwrap.dedent(DATASET))
    printed = run_program(program("assert read(load(num_workers=4)) == list(range(8))"), tmp_path)
    assert printed == ["imported", "imported"]  # by the program and by the server


class Inherited:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return os.getcwd(), os.environ.get("COLOR", "none"), os.environ["CUDA_VISIBLE_DEVICES"], sys.path[-1]


def test_workers_have_the_programs_present_folder_environment_and_path(tmp_path, monkeypatch):
    def seen():
        [batch] = DataLoader(Inherited(), places="cpu", batch_size=2, num_workers=1, **SERVED)
        return [set(column) for column in batch]

    assert seen()[:3] == [{os.getcwd()}, {"none"}, {""}]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOR", "green")
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    assert seen() == [{str(tmp_path)}, {"green"}, {""}, {"/nowhere"}]


class Parents:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return os.getppid()


def test_the_workers_of_every_epoch_are_the_servers_if_nobody_chooses_otherwise():
    one = DataLoader(Parents(), places="cpu", batch_size=2, num_workers=1)
    assert [{*batch.tolist()} for _ in range(3) for batch in one] == [{server_pid()}] * 3


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_server_is_started_for_processes_that_start_otherwise(own_server, method):
    assert indices(loader(Faulty(), start_method=method)) == plain()
    assert fork_server._server is None


def test_a_server_that_was_killed_is_replaced(own_server):
    one = loader(Faulty(24), **SERVED)
    assert indices(one) == plain()
    before = server_pid()
    faulty.end(before)
    assert indices(one) == plain()
    assert server_pid() != before


def test_workers_outlive_their_server(own_server):
    one = loader(Faulty(400), persistent_workers=True, **SERVED)
    epoch = iter(one)
    got = [next(epoch)]
    faulty.end(server_pid())
    assert indices([*got, *epoch]) == plain(400)
    assert indices(one) == plain(400)
    one.close()


def test_the_death_of_a_worker_is_noticed_without_its_server(own_server):
    one = loader(Faulty(4000), persistent_workers=True, **SERVED)
    others = faulty.offspring()
    epoch = iter(one)
    next(epoch)
    [*workers] = faulty.offspring() - others - {server_pid()}
    faulty.end(server_pid())
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(LoaderError, match=r"worker \d \(process"):
        list(epoch)


def test_a_server_that_cannot_start_is_one_error(own_server, monkeypatch):
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode("/bin/false"))
    with pytest.raises(LoaderError, match="the fork server exited with code 1 while it started worker 0"):
        list(loader(Faulty(4), **SERVED))


def test_a_missing_interpreter_is_one_error(own_server, monkeypatch):
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode("/nowhere/python"))
    with pytest.raises(LoaderError, match=r"worker 0 could not be started: .*/nowhere/python"):
        list(loader(Faulty(4), **SERVED))


def test_loaders_of_several_threads_share_a_server(own_server):
    results = {}

    def read(number):
        results[number] = indices(loader(Faulty(24), **SERVED))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), plain())


def test_a_forked_program_has_a_server_of_its_own():
    one = loader(Faulty(24), **SERVED)
    assert indices(one) == plain()
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(BaseException):
            assert indices(loader(Faulty(24), **SERVED)) == plain()
            code = 0
        fork_server.stop_servers()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert indices(one) == plain()


class Shared:
    """A dataset over a segment of shared memory, attached to in each worker."""

    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 4

    def __getitem__(self, index):
        segment = shared_memory.SharedMemory(self.name)
        try:
            return int(segment.buf[index])
        finally:
            segment.close()


def test_a_shared_memory_segment_outlives_the_workers_that_attach_to_it():
    """They have the program's resource tracker, not one of their own that would unlink it."""
    segment = shared_memory.SharedMemory(create=True, size=4)
    try:
        segment.buf[:4] = bytes(range(4))
        one = DataLoader(Shared(segment.name), places="cpu", batch_size=4, num_workers=2, **SERVED)
        for _ in range(2):
            assert [batch.tolist() for batch in one] == [[0, 1, 2, 3]]
    finally:
        segment.close()
        segment.unlink()


def socket_names(pid):
    """Return the names of a process's sockets, to which others on the machine could connect."""
    folder = Path(f"/proc/{pid}/fd")
    opened = {os.readlink(path) for path in folder.iterdir() if path.is_symlink()}
    named = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [words[7] for words in named if len(words) > 7 and f"socket:[{words[6]}]" in opened]


def test_a_killed_program_leaves_no_file_and_no_process(tmp_path):
    code = """
        import sys, time
        from tests.fetch import faulty
        one = faulty.loader(faulty.Faulty(100_000), start_method="forkserver")
        for number, batch in enumerate(one):
            if number == 3:
                print(*faulty.offspring(), flush=True)
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
    assert len(pids) == 3  # the server and two workers
    wait_until(lambda: not any(is_running(pid) for pid in pids), 5)
    assert list(tmp_path.iterdir()) == []


def test_a_loader_that_is_never_read_leaves_nothing(tmp_path):
    write_module(tmp_path, DATASET)
    run_program(program("load(), load()"), tmp_path, TMPDIR=str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} <= {"imports", "numbers_dataset.py", "__pycache__"}


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_persistent_workers_end_with_their_loader(method):
    """At once, not when the garbage collector finds a cycle."""
    others = faulty.offspring()
    one = loader(Faulty(24), start_method=method, persistent_workers=True)
    assert indices(one) == plain()
    workers = faulty.offspring() - others
    assert len(workers) == 2
    gc.disable()
    try:
        del one
        wait_until(lambda: not any(is_running(pid) for pid in workers), 5)
    finally:
        gc.enable()


class Products:
    """Samples that take a product of matrices, large enough for a library to compute in parallel."""

    def __init__(self, compute):
        self.compute = compute

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return float(self.compute(np.full((256, 256), index, np.float32)))


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


def by_scikit_learn(matrix):
    from sklearn.cluster import KMeans

    return KMeans(2, n_init=1, random_state=0).fit(matrix[:, :8] + np.arange(256)[:, None]).inertia_


@pytest.mark.parametrize(
    ("package", "compute"),
    [("numpy", by_numpy), ("torch", by_torch), ("paddle", by_paddle), ("sklearn", by_scikit_learn)],
)
def test_a_forked_worker_computes_after_its_program_has(package, compute):
    """OpenMP's threads do not survive a fork, and waiting for them lasts forever."""
    pytest.importorskip(package)
    dataset = Products(compute)
    expected = [dataset[index] for index in range(4)]
    one = DataLoader(dataset, places="cpu", batch_size=2, num_workers=2, start_method="fork", timeout=60)
    np.testing.assert_allclose([number for batch in one for number in batch], expected, rtol=1e-5)


# What a loader's process and its fork server say to each other: whole values, or an error.


HERE = Surroundings(["a", "b"], "folder", {"NAME": "value"})


@pytest.fixture
def links():
    with nothing_left_behind():
        pair = multiprocessing.Pipe()
        yield pair
        for link in pair:
            link.close()


@pytest.mark.parametrize("length", [0, 1, 3_000_000], ids=["empty", "short", "more than a socket takes"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_value_comes_as_it_was_sent_with_its_descriptors(links, length, count):
    value = Request(("x" * length,), HERE, {}, count)
    ends = [os.pipe() for _ in range(count)]
    sender = threading.Thread(target=send_request, args=(links[0], value, [write for _, write in ends]))
    sender.start()
    found, descriptors = receive_request(links[1])
    sender.join()
    assert found == value
    assert len(descriptors) == count
    for (read, write), copy in zip(ends, descriptors, strict=True):
        os.write(copy, b"over")
        assert os.read(read, 9) == b"over"
        for one in (read, write, copy):
            os.close(one)


def test_values_follow_one_another(links):
    for pid in range(3):
        send_request(links[0], Forked(pid))
    assert [receive_request(links[1]) for _ in range(3)] == [(Forked(pid), []) for pid in range(3)]


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x14", b"\0\0\0\x14half"])
def test_an_end_in_the_middle_of_a_value_is_an_error(links, sent):
    if sent:
        os.write(links[0].fileno(), sent)
    links[0].close()
    with pytest.raises(ServerGone):
        receive_request(links[1])


@pytest.mark.parametrize("count", [0, 1])
def test_an_end_before_all_descriptors_have_come_leaves_none(links, count):
    before = len(os.listdir("/proc/self/fd"))
    send_request(links[0], Forked(1, descriptors=2), [0] * count)
    links[0].close()
    with pytest.raises(ServerGone):
        receive_request(links[1])
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_descriptors_for_which_there_is_no_room_are_an_error(links):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    send_request(links[0], Forked(1, descriptors=1), [0])
    kept = os.dup(0)
    os.close(kept)
    resource.setrlimit(resource.RLIMIT_NOFILE, (kept + 1, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            receive_request(links[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_value_for_a_closed_end_is_an_error(links):
    links[1].close()
    with pytest.raises(ServerGone):
        send_request(links[0], Forked(1))


def test_an_end_that_is_cut_off_is_an_error(links):
    send_request(links[0], Forked(1))
    links[1].close()  # with something unread
    with pytest.raises(ServerGone):
        receive_request(links[0])


# Handles on child processes: the exit code, killing, and descriptors that are closed once.


@pytest.fixture(params=[True, False], ids=["descriptor", "none"])
def child(request):
    """A process that waits to be killed; the test is its server, and writes its status to a pipe."""
    if request.param and not hasattr(os, "pidfd_open"):
        pytest.skip("needs process descriptors")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        while True:
            time.sleep(60)
    handle = ServedChild(pid, read, os.pidfd_open(pid) if request.param else None)
    handle.write = write
    yield handle
    handle.release(is_ours=False)
    if is_running(pid):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    if handle.write is not None:
        os.close(handle.write)


def close(child):
    os.close(child.write)
    child.write = None


def test_an_exit_code_is_there_once_the_server_has_told_it(child):
    assert child.exit_code(0) is None
    os.write(child.write, STATUS.pack(-9))
    assert child.exit_code(10) == -9
    close(child)
    assert child.exit_code(10) == -9


@pytest.mark.parametrize("told", [b"", b"\0"], ids=["nothing", "half"])
def test_there_is_none_if_the_server_died_first(child, told):
    os.write(child.write, told)
    close(child)
    assert child.exit_code(10) is None
    assert child.exit_code(10) is None


def test_a_process_is_killed(child):
    child.kill()
    _, status = os.waitpid(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_descriptors_are_closed_once(child):
    assert not child.released
    descriptors = {child.sentinel, child._link}
    for _ in range(2):
        child.release(is_ours=False)
        assert child.released
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_one_of_ours_is_waited_for(child):
    def end():
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        with suppress(BrokenPipeError):  # with a process descriptor, nobody waits for the status
            os.write(child.write, STATUS.pack(-9))

    ending = threading.Timer(0.05, end)
    ending.start()
    child.release(is_ours=True)
    assert not is_running(child.pid)
    assert child.released
    ending.join()


def test_waiting_for_a_descriptor():
    read, write = os.pipe()
    assert not wait_for(read, 0)
    assert not wait_for(read, -1)
    assert not wait_for(read, 0.002)
    os.write(write, b"x")
    assert wait_for(read, 0)
    assert wait_for(read, None)
    os.close(read)
    os.close(write)
