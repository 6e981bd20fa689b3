"""Both sides: the messages between the loader and a worker process, sent over a socket pair.

A message is a header of 44 bytes, followed in rare cases by a pickled payload. The header holds the payload's
length, because not every system has sockets that preserve message boundaries. Indices travel in a shared
board and samples in the slots, so a task and its answer are usually bare headers. A payload that is too long
for a message goes into a memory file, and the message carries the file's descriptor.
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

from gpuloader.errors import StagingMemoryError
from gpuloader.fetch.processes.pickling import has_cloudpickle
from gpuloader.system.platforms import open_memory_file, reserve

_HEADER = struct.Struct("<BBHIIQQQQ")
_LONGEST = 32 << 10  # bytes per payload; the kernel's default for a socket buffer is 208 KiB
_LONGEST_IN_STREAM = 1 << 10  # on a stream, the kernel sends only short messages whole or not at all
_STREAM = int(socket.SOCK_STREAM)
_INT_NBYTES = 4
NO_ROW = 0xFFFFFFFF
"""Stands for a row of the board: the indices are in the payload."""

_BOARD_NBYTES = 8 << 20
_MOST_ROWS = 1024

NO_BATCH = 2**64 - 1
"""Stands for a batch's number: the error belongs to no batch, and the worker ends."""


class Kind(IntEnum):
    """The kinds of messages, and the meaning of each one's numbers, descriptor and payload."""

    # From the loader.
    SETUP = 1  # descriptor: the parcel with the dataset
    BOARD = 2  # descriptor: the board; a: rows, b: columns
    EPOCH = 3  # b: seed, c: epoch, d: serial; payload: item state
    ARENA = 4  # descriptor: memory of slots; a: the arena's number, b: its bytes
    FORGET = 5  # a: number of an arena that no longer exists
    TASK = 6  # a: row of the board, b: batch, c: samples; arena, d: offset, e: size of the slot (0: none yet)
    SLOT = 7  # answers NEED; arena, d: offset, e: size of the slot (0: refused)
    # From the worker.
    NEED = 8  # asks for a slot; b: batch, c: bytes
    DONE = 9  # b: batch, c: start, d: end of the work, ns; payload: layout, objects and state if new
    END = 10  # b: batch; there is no batch, because the items ran out or the epoch is over
    ERROR = 11  # b: batch or NO_BATCH; payload: the exception
    # To the worker, before SETUP.
    LIST = 12  # descriptor: a packed list of the dataset


@dataclass(slots=True)
class Message:
    """One message; `Kind` defines the meaning of its numbers.

    Attributes
    ----------
    kind : Kind
        The kind of message.
    a, arena : int
        Numbers of 32 bits.
    b, c, d, e : int
        Numbers of 64 bits.
    payload : bytes
        The pickled data behind the header, usually empty.
    descriptor : int or None
        A descriptor that travels with the message; the receiver must close it.
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
    """Send a message; its descriptor stays open on this side.

    `flags` are those of ``send(2)``; pass ``socket.MSG_DONTWAIT`` to raise instead of waiting for room.

    Raises
    ------
    BlockingIOError
        The link is full, with MSG_DONTWAIT.
    ConnectionError
        The other side is gone.
    OSError
        Too few descriptors or too little memory to send it.
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
    """Wait for the next message and return it; None if the other side is gone.

    With ``socket.MSG_DONTWAIT`` in `flags`, an empty link raises BlockingIOError.

    Raises
    ------
    OSError
        The message's descriptor was lost, because this process has too many open files.
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
    """Return whether a link does not preserve message boundaries."""
    # Not `link.type`: creating its enum member costs as much as a read.
    return super(socket.socket, link).type == _STREAM


def _read_rest(link: socket.socket, data: bytes) -> bytes:
    """Read the rest of a message from a stream and return it whole; empty if the sender died in between."""
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
    """Pickle a value for a payload: by name where possible, otherwise by value with cloudpickle.

    The sender of a class that arrived here by value recognizes it, so its instances may be sent back.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        if not has_cloudpickle():
            raise
        return _dumps_by_value(value)


def dumps_for_stranger(value: Any) -> bytes:
    """Pickle a value for a worker without our main module, so that nothing refers to it by name."""
    data = dumps(value)
    return _dumps_by_value(value) if b"__main__" in data and has_cloudpickle() else data


def _dumps_by_value(value: Any) -> bytes:
    data: bytes = importlib.import_module("cloudpickle").dumps(value, pickle.HIGHEST_PROTOCOL)
    return data


class Board:
    """Shared memory into which the loader writes the indices of tasks and the serial of the current epoch.

    Attributes
    ----------
    serial : numpy.ndarray
        int64, shape (1,): the serial of the current epoch. Workers skip tasks of any other.
    rows : numpy.ndarray
        int64, one row of indices per task in progress.
    """

    def __init__(self, descriptor: int, rows: int, columns: int) -> None:
        mapping = mmap.mmap(descriptor, _board_nbytes(rows, columns))
        words: NDArray[np.int64] = np.frombuffer(mapping, np.int64)
        self.serial = words[:1]
        self.rows = words[8:].reshape(rows, columns)

    @classmethod
    def create(cls, rows: int, columns: int) -> tuple[Board, int]:
        """Return a new board of at most 8 MiB, and the descriptor with which workers map it.

        It may have fewer rows and columns than asked for. What does not fit travels in messages.

        Raises
        ------
        StagingMemoryError
            The memory is not available.
        """
        rows = min(rows, _MOST_ROWS)
        columns = min(columns, _BOARD_NBYTES // (8 * rows))
        try:
            return cls._create(rows, columns)
        except OSError as error:
            raise StagingMemoryError(
                f"{_board_nbytes(rows, columns):,} bytes of shared memory for the workers' tasks could not "
                f"be reserved: {error}; free some of it, or pass worker_type='thread' or num_workers=0"
            ) from error

    @classmethod
    def _create(cls, rows: int, columns: int) -> tuple[Board, int]:
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
