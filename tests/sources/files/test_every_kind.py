"""Datasets of every kind: each row once, resuming, servers that fail, credentials and time limits."""

import itertools
import pickle
import socket
import threading
import traceback
from contextlib import contextmanager

import pytest

from gpuloader import DataLoader, SourceError
from gpuloader.sources.files import remote_files
from tests.fakes import leave_early, nothing_left_behind, wait_until
from tests.loading import resume
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, name_workers
from tests.sources.files.kinds import KINDS, STREAMS, numbers_of
from tests.sources.files.serving import serve

TOKEN = "Bearer s3cret"
OPTIONS = {"storage_options": {"headers": {"Authorization": TOKEN}}}
FORKSERVER = {"num_workers": 1, "start_method": "forkserver"}
ROWS = 45


@pytest.fixture(params=KINDS)
def kind(request, tmp_path, remote):
    """Return a class, and the name of its file in a folder."""
    kind, write = KINDS[request.param]
    write(tmp_path / f"a.{request.param}", range(ROWS))
    return kind, f"a.{request.param}"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_have_the_options_of_fsspec_that_the_program_has_set(tmp_path, kind, method, monkeypatch):
    import fsspec

    kind, name = kind
    monkeypatch.setitem(fsspec.config.conf, "http", OPTIONS["storage_options"])
    with serve(tmp_path, token=TOKEN) as served:
        loader = DataLoader(kind(f"{served.url}/{name}"), places="cpu", num_workers=1, start_method=method)
        assert numbers_of(loader) == list(range(ROWS))
        del loader


SHUFFLED = {"shuffle": True, "shuffle_buffer": 30}


@pytest.mark.parametrize(
    ("order", "workers"),
    [({}, INLINE), (SHUFFLED, ONE_THREAD), ({}, THREADS), (SHUFFLED, PROCESSES)],
    ids=lambda one: name_workers(one) if "num_workers" in one else "shuffled" if one else "in order",
)
@pytest.mark.parametrize(("kind", "write"), STREAMS.values(), ids=STREAMS)
def test_every_number_arrives_once_and_a_loader_resumes_in_the_middle(tmp_path, kind, write, order, workers):
    files = {tmp_path / "a": range(ROWS), tmp_path / "b": range(ROWS, 50), tmp_path / "c": range(50, 100)}
    for path, numbers in files.items():
        write(path, numbers)

    def make():
        dataset = kind(list(files), **order)
        return DataLoader(dataset, places="cpu", batch_size=7, **workers)

    def read(loader):
        return [[int(number) for number in batch["x"]] for batch in loader]

    make()  # starts what Arrow keeps
    with nothing_left_behind():
        loader = make()
        epochs = [read(loader) for _ in range(2)]
        leave_early(loader, "closed")
        del loader
    assert [sorted(sum(epoch, [])) for epoch in epochs] == [list(range(100))] * 2  # noqa: RUF017
    assert (epochs[0] == epochs[1]) is not bool(order)
    _, again = resume(make, 5)
    assert read(again) == epochs[0][5:]


@pytest.mark.usefixtures("shared_server")
@pytest.mark.parametrize(
    ("kind", "workers"),
    [*itertools.product(KINDS, [INLINE, THREADS, PROCESSES]), ("zarr", FORKSERVER)],
    ids=str,
    indirect=["kind"],
)
def test_any_workers_read_it_with_options_though_connections_drop(kind, tmp_path, workers, monkeypatch):
    monkeypatch.setattr(remote_files, "FIRST_WAIT", 0.01)
    kind, name = kind
    with serve(tmp_path, drops=lambda tries: tries == 1, token=TOKEN) as served:
        dataset = kind(f"{served.url}/{name}", **OPTIONS)
        copies = [pickle.loads(pickle.dumps(dataset))]
        for one in [dataset, *copies] if workers is INLINE else copies:
            assert numbers_of(DataLoader(one, places="cpu", batch_size=10, **workers)) == list(range(ROWS))
        assert served.dropped


def test_options_show_nowhere(kind, tmp_path):
    kind, name = kind
    with serve(tmp_path, token=TOKEN) as served:
        dataset = kind(f"{served.url}/{name}", **OPTIONS)
        loader = DataLoader(dataset, places="cpu", batch_size=3)
        for _ in loader:
            assert "s3cret" not in repr([dataset, loader, loader.state_dict(), dataset._tries])
        options = {"headers": {"Authorization": "Bearer s3cret, but wrong"}}
        with pytest.raises(SourceError, match="401") as caught:
            list(DataLoader(kind(f"{served.url}/{name}", storage_options=options), places="cpu"))
    assert caught.value.attempts == 1
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    error = caught.value
    while error is not None:
        assert "s3cret" not in repr([error, vars(error)])
        error = error.__cause__ or error.__context__
    with pytest.raises(TypeError, match="storage_options must be a dict or None, got str"):
        kind(name, storage_options="s3cret")


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
def test_a_server_that_never_answers(kind, options, problem, monkeypatch):
    assert remote_files.FIRST_ANSWER == 10
    monkeypatch.setattr(remote_files, "FIRST_ANSWER", 0.3)
    monkeypatch.setattr(remote_files, "FIRST_WAIT", 0.1 if not options else 0)
    kind, name = kind
    with silence() as server, pytest.raises(SourceError, match=problem) as caught:
        list(DataLoader(kind(f"{server}/{name}", **options), places="cpu"))
    assert caught.value.url == f"{server}/{name}"
    assert caught.value.attempts == options.get("attempts", caught.value.attempts)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "gpuloader-request"])


def test_a_timeout_is_checked(kind, tmp_path):
    for timeout in (-1, True, "5", float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"timeout must be a number of seconds of 0 or more, got"):
            kind[0](str(tmp_path / kind[1]), timeout=timeout)
