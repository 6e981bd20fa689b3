"""What a loader's process and its fork server say to each other: whole values, or an error."""

import multiprocessing
import os
import threading

import pytest

from gpuloader.fetch.processes.fork_server import (
    Forked,
    Load,
    ServerGone,
    Surroundings,
    receive_request,
    send_request,
)
from tests.fakes import nothing_left_behind

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
    value = Load(("x" * length,), HERE, count)
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
