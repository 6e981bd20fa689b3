"""The cache of remote files: fetched once, shared by processes, bounded, and never half there."""

import base64
import hashlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from gpuloader import CSVDataset, DataLoader, SourceError, TarDataset
from gpuloader.sources.files import remote_files
from gpuloader.sources.files.remote_files import Tries, open_source
from tests.fakes import wait_until
from tests.sample_sets import INLINE, PROCESSES, name_workers
from tests.sources.files.kinds import STREAMS, numbers_of
from tests.sources.files.serving import serve

pytestmark = pytest.mark.usefixtures("remote")


def cached(folder):
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def read(url, cache, size=None):
    with open_source(url, Tries.of(1, 10, None, cache, size)) as file:
        return file.read()


@pytest.fixture
def three(tmp_path):
    """Three files of 100,000 bytes, which a server has."""
    (tmp_path / "served").mkdir()
    for name in "abc":
        (tmp_path / "served" / name).write_bytes(name.encode() * 100_000)
    with serve(tmp_path / "served") as served:
        yield served


@pytest.mark.parametrize(("kind", "write"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
def test_each_file_is_fetched_once_and_the_second_epoch_without_a_request(tmp_path, kind, write, workers):
    (tmp_path / "served").mkdir()
    for number, name in enumerate("abc"):
        write(tmp_path / "served" / name, range(90 * number, 90 * number + 90))
    with serve(tmp_path / "served", drops=lambda tries: tries == 1) as served:
        dataset = kind([f"{served.url}/{name}" for name in "abc"], cache_dir=tmp_path / "cache")
        loader = DataLoader(dataset, places="cpu", batch_size=10, **workers)
        requests = []
        for _ in range(2):
            assert numbers_of(loader) == list(range(270))
            requests.append(served.requests + served.heads)
        assert requests[0] == requests[1]
        assert sum(served.tries.values()) == 6  # each once, and once more after the drop
    assert len(cached(tmp_path / "cache")) == 3
    del loader


def test_files_used_longest_ago_make_room(tmp_path, three):
    cache = tmp_path / "cache"

    def fetch(name):
        before = three.requests
        assert read(f"{three.url}/{name}", cache, 250_000) == name.encode() * 100_000
        assert sum(path.stat().st_size for path in cached(cache)) <= 250_000
        assert {note.stem[1:] for note in cache.glob(".*.size")} == {one.stem for one in cached(cache)}
        time.sleep(0.01)  # for the times of use to differ
        return three.requests - before

    assert [fetch(name) for name in "abacab"] == [1, 1, 0, 1, 0, 1]


def test_files_and_folders_of_others_are_neither_removed_nor_counted(tmp_path, three):
    cache = tmp_path / "cache"
    (cache / "folder").mkdir(parents=True)
    for own in (cache / "thesis.docx", cache / ("0" * 64), cache / "folder" / "a"):
        own.write_bytes(b"x" * 200_000)
        os.utime(own, (1, 1))
    os.utime(cache / "folder", (1, 1))
    for name in "abc":
        assert read(f"{three.url}/{name}", cache, 200_000) == name.encode() * 100_000
    kept = {path.name for path in cached(cache)} - {path.name for path in cache.glob("*.gpuloader")}
    assert kept == {"thesis.docx", "0" * 64, "folder"}
    assert len(list(cache.glob("*.gpuloader"))) == 2
    assert (cache / "folder" / "a").exists()


def test_one_url_with_other_options_is_another_file(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    for name in "abab":
        options = {"target_protocol": "file", "path": str(tmp_path / name)}
        with open_source("dir://file", Tries.of(1, 10, options, tmp_path / "cache")) as file:
            assert file.read() == name.encode()
    assert len(cached(tmp_path / "cache")) == 2


def test_a_file_that_is_removed_while_it_is_read_is_read_to_its_end(tmp_path, three):
    cache = tmp_path / "cache"
    with open_source(f"{three.url}/a", Tries.of(1, 10, None, cache, 100_000)) as file:
        assert read(f"{three.url}/b", cache, 100_000)[:1] == b"b"
        assert len(cached(cache)) == 1
        assert file.read() == b"a" * 100_000


@pytest.mark.parametrize("left", [0, 50_000, 200_000])
def test_a_file_whose_size_has_changed_on_the_disk_is_fetched_again(tmp_path, three, left):
    cache = tmp_path / "cache"
    for requests in (1, 2, 2):
        assert read(f"{three.url}/a", cache) == b"a" * 100_000
        assert three.requests == requests
        if requests == 1:
            os.truncate(cached(cache)[0], left)


def test_a_file_of_a_release_that_notes_no_sizes_is_read(tmp_path, three):
    cache = tmp_path / "cache"
    read(f"{three.url}/a", cache)
    [note] = cache.glob(".*.size")
    note.unlink()
    assert read(f"{three.url}/a", cache) == b"a" * 100_000
    assert three.requests == 1


def test_a_file_larger_than_the_cache_and_bad_options_are_errors(tmp_path, three):
    with pytest.raises(SourceError, match=r"has 100,000 bytes, more than cache_size=99,999"):
        read(f"{three.url}/a", tmp_path / "cache", 99_999)
    with pytest.raises(ValueError, match="cache_size needs cache_dir"):
        CSVDataset("a.csv", cache_size=1)
    with pytest.raises(ValueError, match="cache_size must be"):
        TarDataset("a.tar", cache_dir=tmp_path, cache_size=0)


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
def test_a_full_disk_is_an_error_that_names_the_folder_and_leaves_no_file(tmp_path, three, workers):
    cache, before = tmp_path / "cache", resource.getrlimit(resource.RLIMIT_FSIZE)
    loader = DataLoader(TarDataset([f"{three.url}/a"], cache_dir=cache), places="cpu", **workers)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # like a full disk, in the workers too
    try:
        with pytest.raises(SourceError, match=f"/a: cannot be kept in cache_dir='{cache}': File too"):
            next(iter(loader))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {path.name[:5] for path in cache.iterdir()} == {".lock"}


def test_a_cache_that_cannot_be_a_folder_is_an_error_that_names_it(tmp_path, three):
    (tmp_path / "cache").touch()
    with pytest.raises(SourceError, match=r"/a: cannot be kept in cache_dir='.*/cache': File exists"):
        read(f"{three.url}/a", tmp_path / "cache")


def test_the_checksum_of_the_store_is_verified(tmp_path, three, monkeypatch):
    from fsspec.implementations.http import HTTPFileSystem

    told = HTTPFileSystem._info
    right = base64.b64encode(hashlib.md5(b"a" * 100_000).digest()).decode()

    async def tell(*args, **options):
        return {**await told(*args, **options), "md5Hash": right}

    monkeypatch.setattr(HTTPFileSystem, "_info", tell)
    monkeypatch.setattr(HTTPFileSystem, "cachable", False)  # not one that was made before
    assert read(f"{three.url}/a", tmp_path / "cache") == b"a" * 100_000
    with pytest.raises(SourceError, match="an MD5 checksum that differs"):
        read(f"{three.url}/b", tmp_path / "cache")
    assert len(cached(tmp_path / "cache")) == 1


def fetch_all(url, cache, started):
    started.wait()
    for name in "abcabc":
        assert read(f"{url}/{name}", cache) == name.encode() * 100_000


def test_processes_that_need_the_same_files_fetch_each_once(tmp_path, three):
    context = multiprocessing.get_context("forkserver")
    started = context.Event()
    arguments = (three.url, tmp_path / "cache", started)
    processes = [context.Process(target=fetch_all, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    started.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert three.requests == three.heads == 3


def test_a_process_that_is_killed_while_it_fetches_leaves_no_lock_and_no_half_file(tmp_path, three):
    cache = tmp_path / "cache"
    program = (
        "import sys, time; from gpuloader.sources.files import remote_files as files\n"
        "read = files.RemoteFile.readinto\n"
        "files.RemoteFile.readinto = lambda self, buffer: time.sleep(600)\n"
        "files.open_source(sys.argv[1], files.Tries.of(1, 10, None, sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, f"{three.url}/a", str(cache)]
    with subprocess.Popen(command) as process:
        wait_until(lambda: list(cache.glob(".*.part")) if cache.exists() else None)
        os.kill(process.pid, signal.SIGKILL)
    assert cached(cache) == []
    assert read(f"{three.url}/a", cache) == b"a" * 100_000
    assert list(cache.glob(".*.part")) == []
    assert 1 <= len(list(cache.glob(".lock-*"))) <= remote_files._LOCKS
