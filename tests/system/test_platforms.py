"""Systems that lack Linux features: the fallbacks produce the same batches and leave nothing behind.

The tests imitate other systems by removing the features they lack: from this process in small tests, and from
every Python process of a program in tests of whole loaders.
"""

import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import types
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest

from gpuloader import DataLoader, LoaderError
from gpuloader.system import platforms
from gpuloader.system.platforms import (
    allowed_cores,
    available_memory,
    check_processes,
    map_memory,
    message_pair,
    open_memory_file,
    open_process,
    reserve,
    seal,
    usable_cores,
)
from gpuloader.system.processes import OwnChild
from tests.fakes import limit_memory
from tests.sample_sets import Made


def square(index):
    return np.float32(index * index)


def test_a_control_groups_limit_counts_but_not_its_page_cache(tmp_path):
    limit_memory(tmp_path, "1000", 700, cached=300)
    assert available_memory(tmp_path) == 600
    limit_memory(tmp_path, "1000", 1200)
    assert available_memory(tmp_path) == 0
    limit_memory(tmp_path, "max", 700, cached=300)
    assert available_memory(tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "most"), [("150000 100000", 2), ("20000 100000", 1), ("max 100000", 10**6)]
)
def test_a_control_groups_share_of_the_processors_counts(tmp_path, quota, most):
    limit_memory(tmp_path, "max", 0)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota + "\n")
    assert usable_cores(tmp_path) == min(most, allowed_cores())


def test_what_is_available_is_what_the_system_says_if_it_does(tmp_path):
    assert 0 < available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    assert available_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8 kB\nMemAvailable: 3 kB\n")
    assert available_memory(tmp_path) == 3072


@pytest.mark.parametrize("lacking", ["an older kernel", "another system"])
def test_where_pages_cannot_be_populated_they_are_touched(lacking, monkeypatch):
    if lacking == "an older kernel":
        monkeypatch.setattr(platforms, "_MADV_POPULATE_WRITE", 9999)
    else:
        monkeypatch.setattr(sys, "platform", "darwin")
    before = page_faults()
    with map_memory(1 << 24, stays=False) as mapping:
        assert page_faults() > before
        after = page_faults()
        assert mapping[:: 1 << 12] == bytes(1 << 12)
        assert page_faults() - after < 1 << 6


@pytest.mark.parametrize(
    ("nbytes", "mapped"),
    [(1, 1), ((1 << 19) - 1, (1 << 19) - 1), (1 << 19, 2 << 20), (2 << 20, 2 << 20), (11 << 20, 12 << 20)],
)
def test_memory_that_huge_pages_hold_in_less_time_is_mapped_in_whole_ones(nbytes, mapped, monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    monkeypatch.setattr(platforms, "_HAS_HUGE", True)
    assert len(map_memory(nbytes, stays=False)) in (mapped, nbytes)  # an older kernel places it anywhere
    assert len(map_memory(nbytes, stays=True)) == nbytes
    monkeypatch.setattr(platforms.ctypes, "addressof", lambda _: 2 << 20)
    assert len(map_memory(nbytes, stays=False)) == mapped
    monkeypatch.setattr(platforms.ctypes, "addressof", lambda _: 1 << 20)
    assert len(map_memory(nbytes, stays=False)) == nbytes
    monkeypatch.setattr(platforms, "_HAS_HUGE", False)
    assert len(map_memory(nbytes, stays=False)) == nbytes
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert len(map_memory(nbytes, stays=False)) == nbytes


class Busy(mmap.mmap):
    def madvise(self, *_):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENOMEM])
def test_pages_that_cannot_be_populated_at_this_moment_are_touched_unless_memory_is_out(number):
    with Busy(-1, 1 << 16) as mapping:
        mapping.number = number
        with pytest.raises(OSError, match="memory") if number == errno.ENOMEM else nullcontext():
            platforms.prefault(mapping)


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_memory_is_reserved_by_writing_zeros_and_what_is_there_stays(monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delattr(os, "memfd_create")
    descriptor = open_memory_file("test")
    try:
        os.pwrite(descriptor, b"abc", 0)
        reserve(descriptor, (1 << 20) + 5)
        assert os.fstat(descriptor).st_size == (1 << 20) + 5
        assert os.fstat(descriptor).st_blocks * 512 >= 1 << 20
        assert os.pread(descriptor, 5, 0) == b"abc\0\0"
        seal(descriptor, writable=False)  # without memory files it does nothing
        assert os.pwrite(descriptor, b"d", 3) == 1
        assert not os.get_inheritable(descriptor)
        assert os.fstat(descriptor).st_nlink == 0
    finally:
        os.close(descriptor)


def test_a_memory_file_is_sealed_while_the_kernel_holds_one_of_its_pages():
    descriptor = open_memory_file("test")
    reading, writing = os.pipe()
    try:
        os.write(descriptor, bytes(4096))
        os.splice(descriptor, writing, 4096, offset_src=0)  # the pipe now holds the page itself
        seal(descriptor, writable=False)
        for change in (lambda: os.pwrite(descriptor, b"d", 0), lambda: os.ftruncate(descriptor, 0)):
            with pytest.raises(PermissionError):
                change()
    finally:
        for one in (descriptor, reading, writing):
            os.close(one)


def test_a_kernel_that_refuses_every_seal_stops_no_workers(monkeypatch):
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(errno.EBUSY, "busy")))
    loader = DataLoader(Made(square, 12), places="cpu", batch_size=4, num_workers=1, start_method="spawn")
    assert [batch.tolist() for batch in loader][-1] == [64, 81, 100, 121]


def test_without_process_descriptors_a_pipe_tells_of_a_death(monkeypatch):
    child = OwnChild(os.getpid(), -7)
    assert child.sentinel >= 0
    child._close()
    monkeypatch.delattr(os, "pidfd_open")
    assert open_process(os.getpid()) is None
    assert OwnChild(os.getpid(), -7).sentinel == -7


def test_a_process_is_killed_by_its_descriptor_where_that_is_allowed(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    descriptor = open_process(child.pid)

    with monkeypatch.context() as patch:
        patch.setattr(signal, "pidfd_send_signal", Mock(side_effect=PermissionError))
        assert not platforms.kill_process(descriptor)
    assert platforms.kill_process(descriptor)
    assert child.wait() == -signal.SIGKILL
    assert platforms.kill_process(descriptor)  # already dead, so there is nothing left to do
    child.stdin.close()
    os.close(descriptor)


def test_sockets_that_do_not_keep_messages_apart_stand_in_for_those_that_do(monkeypatch):
    def refuse(family, kind, make=socket.socketpair):
        if kind == socket.SOCK_SEQPACKET:
            raise OSError(93, "Protocol not supported")
        return make(family, kind)

    for lacking in ("the name", "the kind"):
        with monkeypatch.context() as patch:
            if lacking == "the name":
                patch.delattr(socket, "SOCK_SEQPACKET")
            else:
                patch.setattr(socket, "socketpair", refuse)
            ours, theirs = message_pair()
        assert ours.type == theirs.type == socket.SOCK_STREAM
        ours.close()
        theirs.close()


def test_a_system_without_processes_for_us_says_so_at_once(monkeypatch):
    monkeypatch.setattr(platforms, "os", types.SimpleNamespace(name="nt"))
    with pytest.raises(LoaderError, match="use worker_type='thread' or num_workers=0"):
        check_processes()
    with pytest.raises(LoaderError, match="worker_type='thread'"):
        DataLoader(Made(square, 12), batch_size=4, num_workers=2)
    for options in ({}, {"num_workers": 2, "worker_type": "thread"}):
        assert len(list(DataLoader(Made(square, 12), batch_size=4, **options))) == 3


def test_nothing_is_forked_unasked_where_python_does_not_fork(monkeypatch):
    monkeypatch.setattr("gpuloader.system.processes.default_method", lambda: "spawn")
    dataset = Made(square, 12)
    dataset.lock = threading.Lock()
    with pytest.raises(LoaderError, match=r"lock cannot be pickled.*start_method='fork'"):
        list(DataLoader(dataset, batch_size=4, num_workers=1))
    assert len(list(DataLoader(dataset, batch_size=4, num_workers=1, start_method="fork"))) == 3


POSIX = """
    import mmap, os, signal, socket, sys
    for module, names in (
        (os, "memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING pidfd_open posix_fallocate posix_fadvise eventfd"),
        (os, "sched_getaffinity sched_setaffinity"),
        (signal, "pidfd_send_signal"),
        (socket, "SOCK_SEQPACKET"),
        (mmap, "MADV_HUGEPAGE"),
    ):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.modules["cupy"] = sys.modules["threadpoolctl"] = None
    if os.environ["PICKLER"] == "pickle":
        sys.modules["cloudpickle"] = None
    sys.platform = "darwin"
"""

COMMON = """
    import os, signal
    import numpy as np

    class Squares:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            if index == 63 and os.environ.get("DIE"):
                os.kill(os.getpid(), signal.SIGKILL)
            return {"x": np.full((40, 50), index * index, np.float32), "name": "n" * 3000 + str(index)}

    def check(**options):
        from gpuloader import DataLoader
        loader = DataLoader(Squares(), batch_size=8, shuffle=True, seed=3, **{"places": "cpu", **options})
        return [(np.asarray(b["x"])[:, 0, 0].tolist(), list(b["name"])) for b in loader]

    def check_reader(**options):
        from gpuloader import DataLoader
        loader = DataLoader.from_generator(capacity=2, return_list=True, **options)
        reader = lambda: ([np.full((2, 3), n, np.float32)] for n in range(5))
        loader.set_batch_generator(reader, places="cpu")
        assert [float(b[0][0, 0]) for b in loader] == [0, 1, 2, 3, 4]
"""

MAIN = """
    import gc, sys

    def left():
        gc.collect()
        ours = [name for name in os.listdir("/dev/shm") if "gpuloader" in name]  # other programs use it too
        return [sorted(os.listdir(folder)) for folder in ("/proc/self/fd", os.environ["TMPDIR"])] + ours

    def main():
        assert not hasattr(os, "memfd_create") and sys.platform == "darwin"
        from gpuloader import WorkerError
        from gpuloader.testing import simulated_places
        import multiprocessing, threading
        plain = check()
        pickled = [{"num_workers": 1}]  # spawns, as Python does on macOS
        for options in (
            {"num_workers": 2, "worker_type": "thread"},
            {"num_workers": 2, "start_method": "fork"},
            {"num_workers": 2, "places": simulated_places(1, seed=2)},
            {"num_workers": 0, "places": simulated_places(1, seed=2)},
            {"num_workers": 2, "worker_type": "thread", "places": simulated_places(1, seed=2)},
            *pickled,
        ) if os.environ["PICKLER"] == "cloudpickle" else pickled:
            before = None
            for _ in range(2):
                found = check(**options)
                assert found == plain, (options, found)
                now = left()
                assert before in (None, now), (options, before, now)
                before = now
            assert not multiprocessing.active_children()
            assert [one.name for one in threading.enumerate()] == ["MainThread"]
        os.environ["DIE"] = "1"
        for method in ("fork", "spawn") if os.environ["PICKLER"] == "cloudpickle" else ("spawn",):
            try:
                check(num_workers=1, start_method=method)
            except WorkerError as error:
                assert error.signal == signal.SIGKILL and 63 in error.indices
            else:
                raise AssertionError(method)
        for process in (False, True):
            check_reader(use_multiprocess=process)
        print("done")

    if __name__ == "__main__":
        main()
"""


def run(*arguments, **environment):
    """Run Python to its end, with warnings as errors."""
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


@pytest.mark.parametrize("pickler", ["cloudpickle", "pickle"])
def test_a_posix_system_without_linuxs_own_gives_the_same(tmp_path, pickler):
    """In every process of the program: threads, all start methods, simulated devices, a worker's death.

    With plain pickle, workers import the main module, because forking is not safe there.
    """
    for name, code in (("sitecustomize.py", POSIX), ("main.py", COMMON + MAIN)):
        (tmp_path / name).write_text(textwrap.dedent(code))
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    run(tmp_path / "main.py", **environment, PICKLER=pickler, TMPDIR=str(tmp_path / "temporary"))
    assert not list((tmp_path / "temporary").iterdir())


WITHOUT_POSIX = """
    import mmap, multiprocessing, numpy, os, random, select, signal, socket, sys, tempfile, types
    import multiprocessing.connection, multiprocessing.popen_spawn_posix
    class Mapping(mmap.mmap):  # anonymous or of a file, without flags or madvise
        def __new__(cls, descriptor, length):
            return super().__new__(cls, descriptor, length)
        madvise = property()
    for module, names in (
        (os, "memfd_create pidfd_open posix_fallocate fork register_at_fork sched_getaffinity pread pwrite"),
        (signal, "pidfd_send_signal SIGKILL"),
        (socket, "SOCK_SEQPACKET AF_UNIX send_fds recv_fds"),
        (select, "poll"),
        (mmap, "MAP_PRIVATE MAP_ANONYMOUS MADV_HUGEPAGE"),
    ):
        for name in names.split():
            delattr(module, name)
    mmap.mmap = Mapping
    for name in ("fcntl", "resource", "pwd", "posix", "termios", "cupy"):
        sys.modules[name] = None
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    sys.platform = "win32"

    import gpuloader
    from gpuloader import DataLoader, LoaderError
    from gpuloader.system import platforms
    from gpuloader.staging import Arena
    from gpuloader.testing import simulated_places
    platforms.os = types.SimpleNamespace(**{**vars(os), "name": "nt"})
    assert Arena(5000, shared=True).descriptor is None

    plain = check()
    assert len(plain) == 8
    for places in ("cpu", simulated_places(1, seed=2)):
        for options in ({}, {"num_workers": 2, "worker_type": "thread"}, {"cache": "host"}):
            if "cache" in options:  # numbers only
                arrays = gpuloader.TensorDataset([np.arange(64)])
                loader = DataLoader(arrays, batch_size=8, places=places, num_workers=2)
                assert sum(int(np.asarray(batch[0]).sum()) for batch in loader) == 63 * 32
            else:
                assert check(places=places, **options) == plain
    try:
        check(num_workers=2)
    except LoaderError as error:
        assert "worker_type='thread'" in str(error)
    else:
        raise AssertionError("processes were not refused")
    for doubled in (False, True):
        check_reader(use_double_buffer=doubled)
    mapped = gpuloader.reader.xmap_readers(lambda n: n, lambda: range(4), 2, 2, True)
    assert list(gpuloader.reader.buffered(mapped, 2)()) == [0, 1, 2, 3]
    print("done")
"""


def test_a_system_that_is_not_posix_does_all_that_one_process_does():
    run("-c", textwrap.dedent(COMMON + WITHOUT_POSIX), **os.environ)
