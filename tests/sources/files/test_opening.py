"""Files by path or URL, and retries when a connection drops."""

import _thread
import io
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from gpuloader import SourceError
from gpuloader.errors import MissingPackage
from gpuloader.sources.files import remote_files as opening
from gpuloader.sources.files.remote_files import (
    PLAIN,
    Tries,
    as_urls,
    find_files,
    is_lasting,
    open_source,
    persist,
)
from tests.fetch.faulty import run_program
from tests.sources.files.serving import endless, serve


@pytest.fixture
def no_waits(monkeypatch):
    waits = []
    monkeypatch.setattr(opening.time, "sleep", waits.append)
    return waits


class Refused(Exception):
    """An error with a status, like those of HTTP clients, or with a response, like botocore's."""

    def __init__(self, status=None, response=None):
        super().__init__(f"status {status or response}")
        self.status = status
        self.response = response and {"ResponseMetadata": {"HTTPStatusCode": response}}


class NoCredentialsError(Exception):
    """Named like botocore's."""


def hidden(cause):
    error = FileNotFoundError("it is not there, or cannot be reached")
    error.__cause__ = cause
    return error


LASTING = [
    Refused(403),
    FileNotFoundError(),
    PermissionError(),
    ImportError(),
    ValueError(),
    hidden(Refused(404)),
    hidden(Refused(response=404)),
    Refused(response=403),
    NoCredentialsError(),
    hidden(NoCredentialsError()),
]
PASSING = [ConnectionResetError(), TimeoutError(), OSError("unknown"), Refused(503), Refused(429)]
PASSING += [hidden(ConnectionResetError()), Refused(response=503)]


@pytest.mark.parametrize("error", [*LASTING, *PASSING], ids=repr)
def test_what_passes_is_tried_again_and_what_lasts_is_not(error, no_waits):
    assert is_lasting(error) is (error in LASTING)
    asked = []

    def fail():
        asked.append(1)
        raise error

    with pytest.raises(SourceError) as caught:
        persist(fail, "s3://bucket/a", Tries(4))
    assert len(asked) == caught.value.attempts == (1 if error in LASTING else 4)
    assert caught.value.url == "s3://bucket/a"
    assert caught.value.__cause__ is error
    assert str(caught.value).startswith("s3://bucket/a: cannot be read: ")


def test_waits_grow_and_are_bounded_and_end_in_time(monkeypatch):
    now, waits = [0.0], []

    def sleep(seconds):
        waits.append(seconds)
        now[0] += seconds

    def fail():
        now[0] += 3
        raise ConnectionRefusedError

    monkeypatch.setattr(opening.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(opening.time, "sleep", sleep)
    with pytest.raises(SourceError) as caught:
        persist(fail, "s3://bucket/a", Tries(9, 0), within=10)
    assert (caught.value.attempts, waits) == (4, [0.1, 0.2, 0.4])
    assert now[0] <= 13
    with pytest.raises(SourceError, match=r"\(9 attempts\)"):
        persist(fail, "s3://bucket/a", Tries(9, 0))
    assert waits[3:] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_local_file_is_opened_as_it_is(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    for url in (str(tmp_path / "a"), *as_urls(f"file://{tmp_path}/a"), *as_urls(tmp_path / "a")):
        with open_source(url) as file:
            assert file.read() == b"abc"
    with pytest.raises(SourceError, match="b: cannot open the file: No such file") as caught:
        open_source(str(tmp_path / "b"))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize("timeout", [0, 5.0, 1e300])
def test_an_answer_in_time_is_the_answer(timeout):
    assert persist(lambda: 7, "s3://bucket/a", Tries(1, timeout)) == 7

    def fail():
        raise FileNotFoundError("a")

    with pytest.raises(SourceError, match="FileNotFoundError: a"):
        persist(fail, "s3://bucket/a", Tries(3, timeout))


def test_a_late_answer_is_dropped(monkeypatch):
    monkeypatch.setattr(opening, "FIRST_WAIT", 0)
    late, asked = threading.Event(), []

    def answer():
        asked.append(1)
        if len(asked) == 1:
            late.wait()
        return len(asked)

    try:
        assert persist(answer, "s3://bucket/a", Tries(2, 0.05)) == 2
    finally:
        late.set()


@pytest.mark.parametrize(("urls", "error"), [(3, TypeError), ([3], TypeError), ([], ValueError)])
def test_urls_are_checked(urls, error):
    with pytest.raises(error, match="urls must"):
        as_urls(urls)


def test_without_fsspec_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingPackage, match=r"reading s3://bucket/a needs fsspec.*\[remote\]"):
        open_source("s3://bucket/a")
    with pytest.raises(MissingPackage, match=r"reading s3://bucket/\*.parquet needs fsspec"):
        find_files(["s3://bucket/*.parquet"], "*.parquet", Tries())


class TestOverHttp:
    """A local server whose connections drop."""

    BODY = bytes(range(256)) * 64

    @pytest.fixture(autouse=True)
    def _needs(self, tmp_path, no_waits):
        pytest.importorskip("aiohttp")
        pytest.importorskip("fsspec")
        (tmp_path / "a").write_bytes(self.BODY)

    def test_ranges_come_whole_or_again(self, tmp_path, no_waits):
        with serve(tmp_path, drops=lambda tries: tries < 3) as served:
            with open_source(f"{served.url}/a") as file:
                assert file.seek(-100, io.SEEK_END) == len(self.BODY) - 100
                assert file.read(300) == self.BODY[-100:]
                assert file.read(1) == b""
                file.seek(1000)
                assert file.read(2000) == self.BODY[1000:3000]
                assert file.tell() == 3000
            assert (served.requests, served.dropped) == (6, 4)
        assert no_waits == [0.1, 0.2] * 2

    def test_little_reads_become_large_ones_and_a_missing_file_is_asked_for_once(self, tmp_path, no_waits):
        with serve(tmp_path) as served:
            with open_source(f"{served.url}/a", buffered=True) as file:
                assert b"".join(iter(lambda: file.read(7), b"")) == self.BODY
            assert served.requests == 1
            with pytest.raises(SourceError) as caught:
                open_source(f"{served.url}/b")
        assert (caught.value.attempts, no_waits) == (1, [])

    def test_a_server_that_never_recovers(self, tmp_path):
        with serve(tmp_path, drops=lambda tries: True) as served:
            with open_source(f"{served.url}/a", Tries(3)) as file, pytest.raises(SourceError) as caught:
                file.read(10)
            assert served.requests == caught.value.attempts == 3
        assert caught.value.url == f"{served.url}/a"
        with pytest.raises(SourceError, match=r"Cannot connect.*\(2 attempts\)"):
            open_source(f"{served.url}/a", Tries(2))

    def test_a_server_that_returns_only_whole_files(self, tmp_path, no_waits):
        with serve(tmp_path, ranges=False) as served:
            with open_source(f"{served.url}/a") as file:
                assert file.read(len(self.BODY)) == self.BODY
                file.seek(100)
                with pytest.raises(SourceError, match=r"/a: .*does not return parts of files; use one"):
                    file.read(10)
            assert served.requests == 2
        assert no_waits == []

    def test_a_server_that_packs_answers_is_asked_for_plain_ones(self, tmp_path, no_waits):
        with serve(tmp_path, packs=True) as served, open_source(f"{served.url}/a") as file:
            file.seek(100)
            assert file.read(10) == self.BODY[100:110]

    def test_a_file_of_another_size_is_an_error_at_once(self, tmp_path, no_waits):
        with serve(tmp_path) as served, open_source(f"{served.url}/a") as file:
            (tmp_path / "a").write_bytes(self.BODY + b"more")
            problem = rf"/a: .*had {len(self.BODY)} bytes and has {len(self.BODY) + 4}: make a new dataset"
            with pytest.raises(SourceError, match=problem):
                file.read(10)
        assert no_waits == []

    def test_an_endless_answer_is_cut_off(self, tmp_path):
        problem = pytest.raises(SourceError, match="does not return parts of files")
        with endless() as served, open_source(f"{served.url}/a") as file, problem:
            file.read(10)
        assert served.sent < 16 << 20  # what the sockets of both sides hold


def test_folders_and_patterns_stand_for_files_in_order_of_their_names(tmp_path):
    names = ("b.parquet", "a.parquet", "more/c.parquet", "notes.txt", "odd[1].parquet")
    for name in (*names, "table.parquet/part-0.parquet"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def find(*names):
        found = find_files([str(tmp_path / name) for name in names], "*.parquet", PLAIN)
        return [str(Path(one).relative_to(tmp_path / "data")) for one in found]

    assert find("data") == [
        "a.parquet",
        "b.parquet",
        "more/c.parquet",
        "odd[1].parquet",
        "table.parquet/part-0.parquet",
    ]
    assert find("data/more", "data/[ab].parquet") == ["more/c.parquet", "a.parquet", "b.parquet"]
    assert find("data/odd[1].parquet") == ["odd[1].parquet"]  # a file of this name comes first
    assert find("data/missing.parquet") == ["missing.parquet"]  # opening it says what is wrong
    for name in ("data/x*.parquet", "data/more/*.tar"):
        with pytest.raises(SourceError, match=r"no file matches .*\*"):
            find(name)


@pytest.mark.parametrize("pattern", ["memory://found/", "memory://found/*.parquet", "memory://found/**/*.p*"])
def test_remote_folders_and_patterns_are_listed(pattern):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    names = ["memory:///found/a.parquet", "memory:///found/b.parquet"]
    for name in reversed(names):
        memory.pipe(name, b"")
    try:
        found = find_files([pattern], "*.parquet", Tries())
        assert [one.replace("///", "//") for one in found] == [one.replace("///", "//") for one in names]
        with pytest.raises(SourceError, match="no file matches"):
            find_files(["memory://found/*.tar"], "*.parquet", Tries())
    finally:
        memory.rm("/found", recursive=True)


def test_a_thread_of_another_library_is_not_listed_as_one_of_python_once_it_has_read(tmp_path, remote):
    (tmp_path / "a").write_bytes(bytes(9))
    with serve(tmp_path) as served:
        found = SimpleQueue()
        open_source(f"{served.url}/a").close()  # imports what it needs

        def read():  # as Arrow's threads read, which `threading` does not know
            with open_source(f"{served.url}/a") as file:
                found.put(file.read())
            found.put({one.ident for one in threading.enumerate()} & {threading.get_ident()})

        _thread.start_new_thread(read, ())
        assert found.get(timeout=60) == bytes(9)
        assert not found.get(timeout=60)


# A program of its own: a connection that stays open would outlast the test.
READ_IN_A_FORK = """
import gc, os, sys
from gpuloader.sources.files.remote_files import Tries, open_source

def read():
    with open_source(sys.argv[1], Tries(1, 10)) as file:
        return file.read()

assert read() == b"abc"
pid = os.fork()
if not pid:
    found = read()  # with a file system of its own
    gc.collect()  # that of the parent
    os._exit(0 if found == b"abc" else 2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert read() == b"abc"  # over the connection that is open since the first time
"""


def test_a_fork_that_reads_leaves_the_connections_of_its_parent_alone(tmp_path, remote):
    (tmp_path / "a").write_bytes(b"abc")
    with serve(tmp_path, keeps=True) as served:
        done = run_program(READ_IN_A_FORK, f"{served.url}/a")
    assert (done.returncode, done.stderr) == (0, "")
