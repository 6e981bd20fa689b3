"""A local file server that drops connections, as remote servers do."""

import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

from tests.ranges import send_head


@dataclass
class Served:
    """What a server does, and a record of its requests.

    `drops` takes how often a range of a file has been requested, and returns whether to cut this answer in
    the middle. So the order of the requests, which may come from several workers, does not matter.
    """

    folder: Path
    url: str = ""
    drops: object = None
    requests: int = 0
    heads: int = 0
    dropped: int = 0
    ranges: list = field(default_factory=list)
    tries: Counter = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def _running(handler):
    """Run a server until the block ends; give its address."""

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # closing waits for the threads that answer

    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serve(folder, drops=lambda tries: False, *, ranges=True, token=None, keeps=False, packs=False):
    """Serve the files of a folder until the block ends, in ranges or only whole, to those with the token.

    With `keeps`, connections stay open for further requests. With `packs`, an answer that may be compressed
    is the whole file, as from nginx.
    """
    served = Served(Path(folder), drops=drops)

    class Handler(BaseHTTPRequestHandler):
        protocol_version, timeout = ("HTTP/1.1", 5) if keeps else ("HTTP/1.0", None)

        def do_HEAD(self):
            with served.lock:
                served.heads += 1
            self._begin()

        def do_GET(self):
            body = self._begin()
            if body is None:
                return
            with served.lock:
                served.requests += 1
                served.ranges.append((self.path, len(body)))
                asked = self.path, self.headers.get("Range")
                served.tries[asked] += 1
                drop = served.drops(served.tries[asked])
                served.dropped += drop
            self.wfile.write(body[: len(body) // 2] if drop else body)

        def _begin(self):
            if token is not None and self.headers.get("Authorization") != token:
                self.send_error(401)
                return None
            is_whole = packs and "gzip" in self.headers.get("Accept-Encoding", "")
            return send_head(self, served.folder / self.path.lstrip("/"), ranges=ranges and not is_whole)

        def log_message(self, *arguments):
            pass

    with _running(Handler) as served.url:
        yield served


@contextmanager
def endless(most=256 << 20):
    """Serve a file of 100 KB, of which every range has `most` bytes; `sent` counts those that were taken."""
    served = SimpleNamespace(url="", sent=0)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", "100000")
            self.end_headers()

        def do_GET(self):
            self.send_response(206)
            self.end_headers()  # without a length, the answer ends with the connection
            with suppress(OSError):
                while served.sent < most:
                    self.wfile.write(bytes(1 << 16))
                    served.sent += 1 << 16

        def log_message(self, *arguments):
            pass

    with _running(Handler) as served.url:
        yield served
