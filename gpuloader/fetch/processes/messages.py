"""Both sides: what the loader and a worker process say to each other, over a socket pair.

A message is a header of 44 bytes, followed in rare cases by a pickled payload. Indices travel in a shared
table and samples in the slots, so a task and its answer are usually bare headers. A payload that is too long
for a message goes into a memory file, and the message carries the file's descriptor.
"""

# Not over `multiprocessing.connection`, because every batch waits for a task and its answer. A header there
# and back takes 16.1 us, but 18.4 us with `send_bytes` and `recv_bytes`, which read a length first (medians
# of 5 times 20,000 on two cores). Besides, a `Connection` cannot send a descriptor along with the bytes, and
# cannot send without waiting: if both sides waited for space, neither would read.

from __future__ import annotations

import contextlib
import copyreg
import errno
import io
import os
import pickle
import socket
import struct
import sys
import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gpuloader.errors import LoaderError, describe_error
from gpuloader.fetch.processes.shipping import find_cloudpickle
from gpuloader.foreign import find_extent, is_plain_tensor, tensor_array, tensor_over
from gpuloader.system.finalizers import closing_once
from gpuloader.system.platforms import open_memory_file

_HEADER = struct.Struct("<BBHIIQQQQ")
_LONGEST = 32 << 10  # bytes per payload; the kernel's default for a socket buffer is 208 KiB
_LONGEST_IN_STREAM = 1 << 10  # on a stream, the kernel sends only short messages either whole or not at all
_STREAM = int(socket.SOCK_STREAM)
_INT_NBYTES = 4
# Replaces a batch's number: the error belongs to no batch, and the worker ends.
NO_BATCH = 2**64 - 1


class Kind(IntEnum):
    """The kinds of messages, and the meaning of each one's numbers, descriptor and payload."""

    # From the loader.
    SETUP = 1  # descriptor: the parcel with the dataset
    SERIAL = 2  # descriptor: memory with the serial of the current epoch; b: its bytes
    EPOCH = 3  # b: seed, c: epoch, d: serial; payload: item state
    ARENA = 4  # descriptor: memory of slots; a: the arena's number, b: its bytes
    FORGET = 5  # a: number of an arena that no longer exists
    TASK = 6  # b: batch; arena, d: offset, e: size of the slot (0: none yet); payload: indices, if a as int64
    SLOT = 7  # answers NEED; arena, d: offset, e: size of the slot (0: refused)
    # From the worker.
    NEED = 8  # asks for a slot; b: batch, c: bytes
    DONE = 9  # b: batch, c: start, d: end of the work, ns; payload: layout, objects and state if new
    END = 10  # b: batch; there is no batch, because the items ran out or the epoch is over
    ERROR = 11  # b: batch, or NO_BATCH and a: whether before the first epoch; payload: the exception
    # To the worker, before SETUP.
    LIST = 12  # descriptor: a packed list of the dataset


@dataclass(slots=True)
class Message:
    """One message; `Kind` defines the meaning of its numbers.

    `a` and `arena` have 32 bits, `b` to `e` have 64. The receiver must close the descriptor.
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

    Raises
    ------
    BlockingIOError
        The link is full, with ``socket.MSG_DONTWAIT`` in `flags`.
    ConnectionError
        The other side is gone.
    OSError
        Too few descriptors or too little memory.
    """
    payload, descriptor = message.payload, message.descriptor
    spilled = False
    # Not `link.type`: creating its enum member costs as much as a read.
    if payload and len(payload) > (
        _LONGEST_IN_STREAM if super(socket.socket, link).type == _STREAM else _LONGEST
    ):
        spilled, descriptor = True, open_memory_file("gpuloader-message")
    try:
        if spilled and descriptor is not None:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(payload)
            payload = b""
        # The header holds the payload's length, because not every system has sockets that preserve message
        # boundaries.
        head = message.kind, spilled, len(payload), message.a, message.arena
        data = _HEADER.pack(*head, message.b, message.c, message.d, message.e) + payload
        if descriptor is None:
            sent = link.send(data, flags)
        else:
            sent = socket.send_fds(link, [data], [descriptor], flags)
        if sent < len(data):  # the rest must follow, even if that waits: half a message would be misread
            link.sendall(data[sent:])
    finally:
        if spilled:
            closing_once(descriptor)()


def receive(link: socket.socket, flags: int = 0) -> Message | None:
    """Wait for the next message and return it; None if the other side is gone.

    With ``socket.MSG_DONTWAIT`` in `flags`, an empty link raises BlockingIOError.

    Raises
    ------
    OSError
        The message's descriptor was lost, because this process has too many open files.
    """
    try:
        is_stream = super(socket.socket, link).type == _STREAM
        room = _HEADER.size if is_stream else _HEADER.size + _LONGEST
        data, ancillary, arrived, _ = link.recvmsg(room, socket.CMSG_SPACE(_INT_NBYTES), flags)
        if is_stream and data:
            data = _read_rest(link, data)
    except ConnectionError:  # the other side has closed without reading everything
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
        with os.fdopen(message.descriptor, "rb") as file:
            file.seek(0)  # both sides share the position, which is at the end of the written data
            message.payload = file.read()
        message.descriptor = None
    return message


def _read_rest(link: socket.socket, data: bytes) -> bytes:
    """Read the rest of a message from a stream and return it whole; empty if the sender died in between."""
    while True:
        missing = _HEADER.size - len(data)
        if missing <= 0:
            missing += _HEADER.unpack_from(data)[2]
        if not missing:
            return data
        more = link.recv(missing, socket.MSG_WAITALL)  # without limit: the sender sends all, or dies
        if not more:
            return b""
        data += more


def dumps(value: Any, *, by_value: bool = False) -> bytes:
    """Pickle a value for a payload: by name where possible, otherwise by value with cloudpickle.

    With `by_value`, nothing refers to our main module by name, because the receiver does not have it.
    """
    # By name first: the sender of a class that arrived here by value recognizes it, so its instances can be
    # sent back.
    written = io.BytesIO()
    pickler = pickle.Pickler(written, pickle.HIGHEST_PROTOCOL)
    torch = sys.modules.get("torch")
    if torch is not None:
        pickler.dispatch_table = copyreg.dispatch_table | {torch.Tensor: _reduce_tensor}
    try:
        pickler.dump(value)
        data = written.getvalue()
    except Exception:
        cloudpickle = find_cloudpickle()
        if cloudpickle is None:
            raise
    else:
        cloudpickle = find_cloudpickle() if by_value and b"__main__" in data else None
        if cloudpickle is None:
            return data
    pickled: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return pickled


def _reduce_tensor(tensor: Any) -> Any:
    """Pickle a tensor as an array, with its strides: torch pickles more slowly, and not all of its dtypes."""
    if not is_plain_tensor(tensor) or tensor.requires_grad:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if tensor.is_contiguous():
        return tensor_over, (tensor_array(tensor),)
    extent, size, stride = find_extent(tensor), tuple(tensor.size()), tensor.stride()
    if extent > tensor.numel():  # there are gaps, which may be larger than all else
        return _leave_gaps, (tensor.contiguous(), stride)
    return sys.modules["torch"].as_strided, (tensor.as_strided((extent,), (1,)), size, stride)


def _leave_gaps(tensor: Any, stride: tuple[int, ...]) -> Any:
    return tensor.new_empty_strided(tensor.size(), stride).copy_(tensor)


# An exception as a payload, with its class, its cause and its traceback.


def pack_failure(error: BaseException) -> bytes:
    """Return an exception, its cause and its traceback as a payload; works for any exception."""
    cause, users = error.__cause__, _find_users_own(error)
    # An error that the loader itself raised needs no traceback: its message is complete.
    trace = "" if isinstance(users, LoaderError) else "".join(traceback.format_exception(users))
    return dumps((_freeze(error), None if cause is None else _freeze(cause), trace))


def unpack_failure(payload: bytes) -> BaseException:
    """Return the exception in a message, with the worker's traceback as a note on the user's exception."""
    frozen, frozen_cause, trace = pickle.loads(payload)
    error = _thaw(frozen)
    if frozen_cause is not None:
        error.__cause__ = cause = _thaw(frozen_cause)
        if isinstance(error, LoaderError) and type(cause) is LoaderError:  # in place of one that stayed there
            error._tells_of_user = False
    if trace:
        with contextlib.suppress(Exception):  # not every class has notes
            _find_users_own(error).add_note(f"gpuloader: raised in a worker process\n{trace}")
    return error


def _find_users_own(error: BaseException) -> BaseException:
    """Return the exception that the user's code raised: the cause of a LoaderError, or the error itself."""
    cause = error.__cause__
    return cause if cause is not None and isinstance(error, LoaderError) else error


def _freeze(error: BaseException) -> tuple[str, bytes]:
    """Return an exception's text and its pickle, which is empty if it cannot be restored."""
    text = describe_error(error)
    # First whole, then without its `__init__`, which may take arguments other than `args`, and without those
    # of its parts that cannot be pickled.
    for whole in (True, False):
        with contextlib.suppress(Exception):
            parts: Any = error
            if not whole:
                args = tuple(arg if _is_picklable(arg) else repr(arg) for arg in error.args)
                state = {name: value for name, value in vars(error).items() if _is_picklable(value)}
                parts = type(error), args, state
            frozen = text, dumps(parts)
            # Some exceptions can be pickled but not restored.
            if type(_thaw(frozen)) is type(error):
                return frozen
    return text, b""


def _thaw(frozen: tuple[str, bytes]) -> BaseException:
    text, data = frozen
    with contextlib.suppress(Exception):  # its class may exist only in the worker
        error = pickle.loads(data)
        if isinstance(error, tuple):
            kind, args, state = error
            error = kind.__new__(kind, *args)
            error.args = args
            vars(error).update(state)
        if isinstance(error, BaseException):
            return error
    return LoaderError(text)


def _is_picklable(value: object) -> bool:
    try:
        pickle.loads(dumps(value))
    except Exception:
        return False
    return True
