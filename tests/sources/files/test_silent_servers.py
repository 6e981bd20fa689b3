"""A server that accepts a connection and never answers is an error that names the URL, in time."""

import socket
import threading
from contextlib import contextmanager

import pytest

from gpuloader import DataLoader, HDF5Dataset, ParquetDataset, SourceError, TarDataset, ZarrDataset
from gpuloader.sources.files import remote_files as opening
from gpuloader.sources.files.remote_files import Tries, persist
from tests.fakes import wait_until

WAIT = {"attempts": 2, "timeout": 0.3}


@contextmanager
def silence():
    """Accept connections until the block ends, and answer none; yield the URL of the server."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept():
            while True:
                try:
                    kept.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in kept:
                one.close()


KINDS = pytest.mark.parametrize(
    ("kind", "package", "name"),
    [
        (ParquetDataset, "pyarrow", "a.parquet"),
        (HDF5Dataset, "h5py", "a.h5"),
        (ZarrDataset, "zarr", "a.zarr"),
        (TarDataset, "tarfile", "a.tar"),
    ],
)


@KINDS
def test_by_default_a_server_must_answer_once_in_time(kind, package, name, monkeypatch):
    for needed in (package, "fsspec", "aiohttp"):
        pytest.importorskip(needed)
    assert opening.FIRST_ANSWER == 10
    monkeypatch.setattr(opening, "FIRST_ANSWER", 0.3)
    with silence() as server, pytest.raises(SourceError, match=r"no answer within the timeout of 0\.[0-3]"):
        list(DataLoader(kind(f"{server}/{name}"), places="cpu"))
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "gpuloader-request"])


@KINDS
def test_a_server_that_never_answers(kind, package, name, monkeypatch):
    for needed in (package, "fsspec", "aiohttp"):
        pytest.importorskip(needed)
    monkeypatch.setattr(opening, "FIRST_WAIT", 0)
    with silence() as server:
        url = f"{server}/{name}"
        with pytest.raises(
            SourceError, match=r"no answer within the timeout of 0.3 s \(2 attempts\)"
        ) as caught:
            list(DataLoader(kind(url, **WAIT), places="cpu"))
        assert (caught.value.url, caught.value.attempts) == (url, 2)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "gpuloader-request"])


@pytest.mark.parametrize("timeout", [-1, True, "5", float("inf"), float("nan")])
def test_a_timeout_is_checked(timeout, tmp_path):
    for kind, package in ((ZarrDataset, "zarr"), (HDF5Dataset, "h5py"), (TarDataset, "tarfile")):
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
    late = threading.Event()
    asked = []

    def answer():
        asked.append(1)
        if len(asked) == 1:
            late.wait()
        return len(asked)

    try:
        assert persist(answer, "s3://bucket/a", Tries(2, 0.05)) == 2
    finally:
        late.set()
