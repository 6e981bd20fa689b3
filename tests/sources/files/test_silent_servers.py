"""A server that accepts a connection and never answers is an error that names the URL, in time."""

import socket
import threading
from contextlib import contextmanager

import pytest

from gpuloader import DataLoader, HDF5Dataset, ParquetDataset, SourceError, TarDataset, ZarrDataset
from gpuloader.sources.files import remote_files as opening
from gpuloader.sources.files.remote_files import Tries, persist
from tests.fakes import wait_until


@contextmanager
def silence():
    """Listen until the block ends, and answer none of the connections; yield the URL of the server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the system accepts them
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, r"no answer within the timeout of 0\.[0-3]"),  # by default, a server must answer once in time
        ({"attempts": 2, "timeout": 0.3}, r"no answer within the timeout of 0.3 s \(2 attempts\)"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "package", "name"),
    [
        (ParquetDataset, "pyarrow", "a.parquet"),
        (HDF5Dataset, "h5py", "a.h5"),
        (ZarrDataset, "zarr", "a.zarr"),
        (TarDataset, "tarfile", "a.tar"),
    ],
)
def test_a_server_that_never_answers(kind, package, name, options, problem, remote, monkeypatch):
    pytest.importorskip(package)
    assert opening.FIRST_ANSWER == 10
    monkeypatch.setattr(opening, "FIRST_ANSWER", 0.3)
    monkeypatch.setattr(opening, "FIRST_WAIT", 0.1 if not options else 0)
    with silence() as server, pytest.raises(SourceError, match=problem) as caught:
        list(DataLoader(kind(f"{server}/{name}", **options), places="cpu"))
    assert caught.value.url == f"{server}/{name}"
    assert caught.value.attempts == options.get("attempts", caught.value.attempts)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "gpuloader-request"])


@pytest.mark.parametrize("timeout", [-1, True, "5", float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("kind", "package"), [(ZarrDataset, "zarr"), (HDF5Dataset, "h5py"), (TarDataset, "io")]
)
def test_a_timeout_is_checked(timeout, kind, package, tmp_path):
    pytest.importorskip(package)
    with pytest.raises(ValueError, match=r"timeout must be a number of seconds of 0 or more, got"):
        kind(str(tmp_path / "a"), timeout=timeout)


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
