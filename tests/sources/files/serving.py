"""A local file server that drops connections, as remote servers do."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.ranges import send_head


@dataclass
class Served:
    """What a server does, and a record of its requests.

    `drops` takes the number of a GET request, from 1, and returns whether to cut its answer in the middle.
    """

    folder: Path
    url: str = ""
    drops: object = None
    requests: int = 0
    dropped: int = 0
    ranges: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serve(folder, drops=lambda number: False, *, ranges=True):
    """Serve the files of a folder until the block ends, in ranges or only whole."""
    served = Served(Path(folder), drops=drops)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self._begin()

        def do_GET(self):
            body = self._begin()
            if body is None:
                return
            with served.lock:
                served.requests += 1
                served.ranges.append((self.path, len(body)))
                drop = served.drops(served.requests)
                served.dropped += drop
            self.wfile.write(body[: len(body) // 2] if drop else body)

        def _begin(self):
            return send_head(self, served.folder / self.path.lstrip("/"), ranges=ranges)

        def log_message(self, *arguments):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # closing waits for the threads that answer

    server = Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
