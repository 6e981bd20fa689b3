"""What the loader and a worker process say to each other: short messages over a socket pair.

A message is a header of 44 bytes and, rarely, something pickled behind it, whose length the header has: not
every system has sockets that keep messages apart. Indices travel in a shared board
and samples in the slots, so a task and its answer are headers alone. What is too long for a message goes in
a memory file whose descriptor the message carries.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import mmap
import os
import pickle
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.platforms import open_memory_file, reserve
from gpuloader.fetch.processes.pickling import has_cloudpickle

_HEADER = struct.Struct("<BBHIIQQQQ")
_LONGEST = 32 << 10  # bytes of a message; the kernel's default for a socket's buffer is 208 KiB
_LONGEST_IN_STREAM = 1 << 10  # there only short messages are taken by the kernel as a whole or not at all
_STREAM = int(socket.SOCK_STREAM)
_INT_NBYTES = 4
NO_ROW = 0xFFFFFFFF
"""In the place of a board's row: the indices are behind the header."""

NO_BATCH = 2**64 - 1
"""In the place of a batch's number: the error is not of a batch, and the worker ends with it."""


class Kind(IntEnum):
    """What a message is about."""

    SETUP = 1  # the dataset in a parcel (descriptor); pickled: nothing
    BOARD = 2  # the board (descriptor); a: rows, b: columns
    EPOCH = 3  # b: seed, c: epoch, d: serial; pickled: form and item state
    FORM = 4  # pickled: the form, which another worker settled
    ARENA = 5  # slots' memory (descriptor); a: its number, b: bytes
    FORGET = 6  # a: number of an arena that is gone
    TASK = 7  # a: row of the board, arena and offset and size of the slot (size 0: none yet); b: batch
    SLOT = 8  # the slot that was asked for, as in TASK; size 0: it is refused
    NEED = 9  # b: batch, c: bytes; pickled: the form, if this batch settled it
    DONE = 10  # b: batch, c: begun, d: end; pickled: what is new about it
    END = 11  # b: batch; there is none, the worker's items are at their end, or the task was called off
    ERROR = 12  # b: batch, or NO_BATCH; pickled: the exception


@dataclass(slots=True)
class Message:
    """One message; which numbers mean what, `Kind` says.

    Attributes
    ----------
    kind : Kind
        What it is about.
    a, arena : int
        32 bits each.
    b, c, d, e : int
        64 bits each.
    payload : bytes
        What is pickled behind the header.
    descriptor : int or None
        A descriptor that came with it, the receiver's to close.
    """

    kind: int
    a: int = 0
    arena: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    payload: bytes = b""
    descriptor: int | None = None


def send(link: socket.socket, message: Message, flags: int = 0) -> None:
    """Send a message; its descriptor stays open here.

    `flags` are the system's: with ``socket.MSG_DONTWAIT`` it does not wait.

    Raises
    ------
    BlockingIOError
        It was not to wait, and the link is full.
    ConnectionError
        The other side is gone.
    OSError
        There are no descriptors or memory left to send it with.
    """
    payload, descriptor = message.payload, message.descriptor
    if spilled := len(payload) > (_LONGEST_IN_STREAM if _is_stream(link) else _LONGEST):
        payload, descriptor = b"", _spill(payload)
    head = message.kind, spilled, len(payload), message.a, message.arena
    data = _HEADER.pack(*head, message.b, message.c, message.d, message.e) + payload
    try:
        if descriptor is None:
            sent = link.send(data, flags)
        else:
            sent = socket.send_fds(link, [data], [descriptor], flags)
        if sent < len(data):
            link.sendall(data[sent:])
    finally:
        if spilled and descriptor is not None:
            os.close(descriptor)


def receive(link: socket.socket, flags: int = 0) -> Message | None:
    """Return the next message, waiting for it; None where the other side is gone.

    `flags` are the system's: with ``socket.MSG_DONTWAIT`` it does not wait.

    Raises
    ------
    BlockingIOError
        It was not to wait, and no message is there.
    OSError
        What came with the message did not fit among this process's open files.
    """
    try:
        room = _HEADER.size if (is_stream := _is_stream(link)) else _HEADER.size + _LONGEST
        data, ancillary, arrived, _ = link.recvmsg(room, socket.CMSG_SPACE(_INT_NBYTES), flags)
        if is_stream and data:
            data = _read_rest(link, data)
    except ConnectionError:
        return None
    if not data:
        return None
    if arrived & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, "a message was lost: too many open files")
    kind, spilled, _, a, arena, b, c, d, e = _HEADER.unpack_from(data)
    message = Message(kind, a, arena, b, c, d, e, data[_HEADER.size :])
    for _, _, packed in ancillary:
        message.descriptor = int.from_bytes(packed[:_INT_NBYTES], "little")
    if spilled and message.descriptor is not None:
        message.payload = _unspill(message.descriptor)
        message.descriptor = None
    return message


def _is_stream(link: socket.socket) -> bool:
    """Return whether a link does not keep messages apart."""
    return (
        super(socket.socket, link).type == _STREAM
    )  # not `link.type`: making the enum costs as much as reading


def _read_rest(link: socket.socket, data: bytes) -> bytes:
    """Return a message of which a stream gave the beginning, nothing where the other side died amid it."""
    while True:
        missing = _HEADER.size - len(data)
        if missing <= 0:
            missing += _HEADER.unpack_from(data)[2]
        if not missing:
            return data
        more = link.recv(missing, socket.MSG_WAITALL)
        if not more:
            return b""
        data += more


def _spill(payload: bytes) -> int:
    descriptor = open_memory_file("gpuloader-message")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(payload)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unspill(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def dumps(value: Any) -> bytes:
    """Return a value pickled for a payload: by name what has one, by value where that is all there is.

    A class that came here by value is known again where it came from, so objects of it may go back.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        if not has_cloudpickle():
            raise
        return _dumps_by_value(value)


def dumps_for_stranger(value: Any) -> bytes:
    """Return a value pickled for a worker whose main module is not ours, so that nothing refers to that."""
    data = dumps(value)
    return _dumps_by_value(value) if b"__main__" in data and has_cloudpickle() else data


def _dumps_by_value(value: Any) -> bytes:
    data: bytes = importlib.import_module("cloudpickle").dumps(value, pickle.HIGHEST_PROTOCOL)
    return data


class Board:
    """Shared memory in which the loader writes what a task's indices are, and which epoch still counts.

    Attributes
    ----------
    serial : numpy.ndarray
        One number: the epoch that is served now. Tasks of another are called off.
    rows : numpy.ndarray
        int64, one row a task under way.
    """

    def __init__(self, descriptor: int, rows: int, columns: int) -> None:
        mapping = mmap.mmap(descriptor, _board_nbytes(rows, columns))
        words: NDArray[np.int64] = np.frombuffer(mapping, np.int64)
        self.serial = words[:1]
        self.rows = words[8:].reshape(rows, columns)

    @classmethod
    def create(cls, rows: int, columns: int) -> tuple[Board, int]:
        """Return a new board, and the descriptor that others map it by."""
        descriptor = open_memory_file("gpuloader-board")
        try:
            reserve(descriptor, _board_nbytes(rows, columns))
            return cls(descriptor, rows, columns), descriptor
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise


def _board_nbytes(rows: int, columns: int) -> int:
    return 64 + rows * columns * 8
