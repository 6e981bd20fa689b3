"""Answers of file servers that tests use, in ranges."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path


def send_head(handler: BaseHTTPRequestHandler, path: Path, *, ranges: bool = True) -> bytes | None:
    """Send the headers of the range that is asked for, or of the whole file; return the bytes to follow."""
    if not path.is_file():
        handler.send_error(404)
        return None
    body = path.read_bytes()
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
    if found and ranges:
        start, last = map(int, found.groups())
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{last}/{len(body)}")
        body = body[start : last + 1]
    else:
        handler.send_response(200)
    handler.send_header("Accept-Ranges", "bytes")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    return body
