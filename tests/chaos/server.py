"""A file server that spoils requests when the attacked program tells it to.

| what it does | what the program may see |
|---|---|
| cut: half of the bytes, then the end of the connection | nothing, if few requests are spoiled |
| reset: the connection is reset after half of the bytes | the same |
| silence: no answer for longer than the timeout | the same |
| refuse: status 500 | the same |
| whole: the whole file instead of the range | a SourceError, because the next attempt would see the same |
"""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.ranges import send_head

ATTEMPTS = 4
TIMEOUT = 2.0
"""Seconds after which a program takes an attempt for failed."""


class Handler(BaseHTTPRequestHandler):
    """Answers one request, and closes the connection."""

    server: Server

    def do_HEAD(self) -> None:
        send_head(self, self.server.folder / self.path.lstrip("/"))

    def do_GET(self) -> None:
        """Answer with a file or a range of it, or take an order of the program."""
        if self.path.startswith("/spoil/"):
            self.server.kind, _, count = self.path.removeprefix("/spoil/").partition("/")
            self.server.left = int(count)
            self.send_response(200)
            self.end_headers()
            return
        kind = self.server.take_kind()
        if kind == "silence":
            self.server.over.wait(1.5 * TIMEOUT)
        if kind == "refuse":
            self.send_error(500)
            return
        with suppress(OSError):  # the program may have gone
            path = self.server.folder / self.path.lstrip("/")
            body = send_head(self, path, ranges=kind != "whole") or b""
            self.wfile.write(body[: len(body) // 2] if kind in ("cut", "reset") else body)
            if kind == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


class Server(ThreadingHTTPServer):
    """The server of one program's folder."""

    daemon_threads = False  # closing waits for the threads that answer

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.kind, self.left = "", 0  # what is done to requests for files, and to how many more
        self.over = threading.Event()  # set at the end, for answers that are late
        self._lock = threading.Lock()

    def take_kind(self) -> str:
        with self._lock:
            self.left -= 1
            return self.kind if self.left >= 0 else ""

    def handle_error(self, *_: object) -> None:
        """Write nothing: programs that are killed leave requests behind."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the files of a folder until the block ends, and yield the URL."""
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def spoil(url: str, kind: str, count: int) -> None:
    """Make a server spoil its next `count` requests."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/spoil/{kind}/{count}", timeout=60):
        pass
