"""Messages between loader and worker, over sockets that preserve message boundaries and over streams."""

import os
import pickle
import socket
import sys
import threading

import pytest

from gpuloader.fetch.processes.messages import Kind, Message, dumps, receive, send
from gpuloader.fetch.processes.shipping import find_cloudpickle
from gpuloader.system.platforms import message_pair
from tests.fakes import nothing_left_behind


@pytest.fixture(params=["apart", "stream"])
def link(request, monkeypatch):
    if request.param == "stream":
        monkeypatch.delattr(socket, "SOCK_SEQPACKET")
    with nothing_left_behind():
        ours, theirs = message_pair()
        yield ours, theirs
        ours.close()
        theirs.close()


@pytest.mark.parametrize("nbytes", [0, 1, 1024, 1025, 32 << 10, (32 << 10) + 1, 300_000])
def test_messages_arrive_as_they_were_sent_one_by_one(link, nbytes):
    ours, theirs = link
    payload = bytes(range(256)) * (nbytes // 256 + 1)
    message = Message(Kind.TASK, 1, 2, 3, 4, 5, 2**64 - 1, payload=payload[:nbytes])
    after = Message(Kind.END, b=7)
    sender = threading.Thread(target=lambda: [send(ours, one) for one in (message, after)])
    sender.start()
    assert [receive(theirs), receive(theirs)] == [message, after]
    sender.join()


def test_descriptors_come_with_the_message_they_were_sent_with(link):
    ours, theirs = link
    pipes = [os.pipe() for _ in range(3)]
    for number, (readable, _) in enumerate(pipes):
        send(ours, Message(Kind.ARENA, a=number, descriptor=readable, payload=b"x" * 100 * number))
        send(ours, Message(Kind.FORGET, a=number))
    for number, (readable, writable) in enumerate(pipes):
        arena, forget = receive(theirs), receive(theirs)
        assert (arena.a, forget.a, forget.descriptor) == (number, number, None)
        os.write(writable, b"hello")
        assert os.read(arena.descriptor, 5) == b"hello"
        for descriptor in (arena.descriptor, readable, writable):
            os.close(descriptor)


def test_sending_and_receiving_without_waiting(link):
    ours, theirs = link
    with pytest.raises(BlockingIOError):
        receive(theirs, socket.MSG_DONTWAIT)
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            send(ours, Message(Kind.TASK, b=sent, payload=b"x" * 700), socket.MSG_DONTWAIT)
            sent += 1
    assert sent > 10
    assert [receive(theirs, socket.MSG_DONTWAIT).b for _ in range(sent)] == list(range(sent))
    with pytest.raises(BlockingIOError):
        receive(theirs, socket.MSG_DONTWAIT)


def test_the_end_of_the_other_side_is_none_and_what_it_said_before_is_heard(link):
    ours, theirs = link
    send(ours, Message(Kind.DONE, b=1))
    ours.close()
    assert receive(theirs).b == 1
    assert receive(theirs) is None
    with pytest.raises(ConnectionError):
        send(theirs, Message(Kind.DONE))


def test_a_message_that_comes_in_pieces_is_put_together(monkeypatch):
    monkeypatch.delattr(socket, "SOCK_SEQPACKET")
    (ours, theirs), (relay, end) = message_pair(), message_pair()
    with ours, theirs, relay, end:
        send(ours, Message(Kind.TASK, b=9, payload=b"abcdef"))
        send(ours, Message(Kind.END))
        data = theirs.recv(1 << 12)
        assert len(data) == 2 * 44 + 6
        heard = []
        reader = threading.Thread(target=lambda: heard.extend([receive(end), receive(end)]))
        reader.start()
        for place in range(len(data)):
            relay.send(data[place : place + 1])
        reader.join()
        assert heard == [Message(Kind.TASK, b=9, payload=b"abcdef"), Message(Kind.END)]
        relay.send(data[:47])
        relay.close()
        assert receive(end) is None  # the sender died in the middle of a message


def test_a_message_that_the_system_sends_in_part_is_completed(monkeypatch):
    class Short(socket.socket):
        """A socket that sends only ten bytes at a time."""

        def send(self, data, flags=0):
            return super().send(data[:10], flags)

    monkeypatch.delattr(socket, "SOCK_SEQPACKET")
    ours, theirs = message_pair()
    with Short(fileno=ours.detach()) as short, theirs:
        send(short, Message(Kind.TASK, b=9, payload=b"abcdef"), socket.MSG_DONTWAIT)
        assert receive(theirs) == Message(Kind.TASK, b=9, payload=b"abcdef")


def test_a_function_without_a_name_goes_by_value_or_says_why_not(monkeypatch):
    if find_cloudpickle():
        assert pickle.loads(dumps(lambda: 3))() == 3
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        dumps(lambda: 3)
