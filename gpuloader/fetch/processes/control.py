"""Both sides: what a loader's process and its fork server say to each other, over a stream of frames."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct("<Q")
_MOST_DESCRIPTORS = 4


class ServerGone(Exception):
    """The other end of the control socket closed."""


@dataclass(frozen=True, slots=True)
class Load:
    """Import modules, without an answer; a module that cannot be imported is left to the workers.

    Attributes
    ----------
    modules : tuple of str
        Their names.
    surroundings : Surroundings
        The path, folder and environment of the loader's process now.
    """

    modules: tuple[str, ...]
    surroundings: Surroundings


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a worker. Its link and the pipe for its exit status come along as descriptors.

    Attributes
    ----------
    number : int
        The worker's number.
    origins : dict of str to str
        The files of the modules that the worker will import, as the loader's process knows them.
    surroundings : Surroundings
        The path, folder and environment of the loader's process now.
    preparation : dict
        As `multiprocessing.spawn.get_preparation_data` returns it.
    has_tracker : bool
        Whether a descriptor of the loader's resource tracker comes along as well.
    """

    number: int
    origins: dict[str, str]
    surroundings: Surroundings
    preparation: dict[str, Any]
    has_tracker: bool


@dataclass(frozen=True, slots=True)
class Forked:
    """The answer to `Fork`. The worker's process descriptor comes along, if the system has those.

    Attributes
    ----------
    pid : int
        The worker's process id; 0 if it was not forked.
    problem : str
        Why the server cannot fork this worker, if another server could.
    error : OSError or None
        Why the system refused to fork.
    """

    pid: int
    problem: str = ""
    error: OSError | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process inherits from its parent, and a fork server's child would not.

    Attributes
    ----------
    path : list of str
        Where modules are found.
    folder : str
        The current folder; empty if it was deleted.
    environment : dict of str to str
        The environment variables.
    """

    path: list[str]
    folder: str
    environment: dict[str, str]


def send_frame(
    link: socket.socket, value: Load | Fork | Forked, descriptors: list[int] | None = None
) -> None:
    """Send a value and copies of some descriptors.

    Raises
    ------
    ServerGone
        The other end is closed.
    """
    payload = pickle.dumps(value)
    data = _LENGTH.pack(len(payload)) + payload
    try:
        sent = socket.send_fds(link, [data], descriptors) if descriptors else link.send(data)
        if sent < len(data):
            link.sendall(data[sent:])
    except ConnectionError as error:
        raise ServerGone from error


def receive_frame(link: socket.socket) -> tuple[Any, list[int]]:
    """Wait for a value; return it and the descriptors that came with it.

    Raises
    ------
    ServerGone
        The other end is closed.
    """
    descriptors: list[int] = []
    try:
        head, descriptors, _, _ = socket.recv_fds(link, _LENGTH.size, _MOST_DESCRIPTORS)
        head += _receive_rest(link, _LENGTH.size - len(head))
        (length,) = _LENGTH.unpack(head)
        return pickle.loads(_receive_rest(link, length)), descriptors
    except BaseException as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, ConnectionError):
            raise ServerGone from error
        raise


def _receive_rest(link: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = link.recv(length - len(data))
        if not more:
            raise ServerGone
        data += more
    return data
