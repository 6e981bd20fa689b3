"""What a loader's process and its fork server say to each other: whole values, or an error."""

import os
import socket
import threading

import pytest

from gpuloader.fetch.processes.control import (
    Forked,
    Load,
    ServerGone,
    Surroundings,
    receive_frame,
    send_frame,
)
from tests.fakes import nothing_left_behind

HERE = Surroundings(["a", "b"], "folder", {"NAME": "value"})


@pytest.fixture
def links():
    with nothing_left_behind():
        pair = socket.socketpair()
        yield pair
        for link in pair:
            link.close()


@pytest.mark.parametrize("length", [0, 1, 3_000_000], ids=["empty", "short", "more than a socket takes"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_value_comes_as_it_was_sent_with_its_descriptors(links, length, count):
    value = Load(("x" * length,), HERE)
    ends = [os.pipe() for _ in range(count)]
    sender = threading.Thread(target=send_frame, args=(links[0], value, [write for _, write in ends]))
    sender.start()
    found, descriptors = receive_frame(links[1])
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
        send_frame(links[0], Forked(pid))
    assert [receive_frame(links[1]) for _ in range(3)] == [(Forked(pid), []) for pid in range(3)]


@pytest.mark.parametrize("sent", [0, 3, 8, 12], ids=["nothing", "half a head", "a head", "half a value"])
def test_an_end_in_the_middle_is_an_error_and_leaves_no_descriptor(links, sent):
    frame = (20).to_bytes(8, "little") + bytes(20)
    before = len(os.listdir("/proc/self/fd"))
    if sent:
        socket.send_fds(links[0], [frame[:sent]], [links[0].fileno()])
    links[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(ServerGone):
        receive_frame(links[1])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_value_for_a_closed_end_is_an_error(links):
    links[1].close()
    with pytest.raises(ServerGone):
        send_frame(links[0], Forked(1))


def test_an_end_that_is_cut_off_is_an_error(links):
    send_frame(links[0], Forked(1))
    links[1].close()  # with something unread
    with pytest.raises(ServerGone):
        receive_frame(links[0])
