"""Which encoded pictures a GPU decodes: JPEG files of the usual kinds that are whole, by their markers."""

from __future__ import annotations

from typing import NamedTuple

_START, _END, _SCAN, _FRAMES = 0xD8, 0xD9, 0xDA, (0xC0, 0xC1, 0xC2)
_TABLES = {0xDB: "quantization", 0xC4: "huffman"}
_OTHER_FRAMES = frozenset(range(0xC0, 0xD0)) - {*_FRAMES, 0xC4, 0xC8}
_ADOBE = 0xEE
_BITS = 8
_SAMPLINGS = ((1, 1), (2, 1), (2, 2), (1, 2), (4, 1))
"""Pixels per sample of color, across and down: 4:4:4, 4:2:2, 4:2:0, 4:4:0 and 4:1:1."""


class _Frame(NamedTuple):
    bits: int
    height: int
    components: tuple[tuple[int, int, int], ...]  # identifier, sampling across and down


def is_plain(data: bytes) -> bool:
    """Return whether a picture is a whole JPEG file that GPU decoders read as the CPU's do.

    That is baseline or progressive, of 8 bits, gray or YCbCr of a usual subsampling, with its tables and its
    end. The compressed pixels themselves are not looked at.

    Examples
    --------
    >>> import io, pytest
    >>> pillow = pytest.importorskip("PIL.Image")
    >>> file = io.BytesIO()
    >>> pillow.new("RGB", (20, 10)).save(file, "JPEG")
    >>> is_plain(file.getvalue()), is_plain(file.getvalue()[:-20]), is_plain(b"GIF89a")
    (True, False, False)
    """
    if bytes(data[:2]) != bytes([0xFF, _START]):
        return False
    frame: _Frame | None = None
    adobe: int | None = None
    tables: set[str] = set()
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return False
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        length = data[at + 2] << 8 | data[at + 3]
        body, at = data[at + 4 : at + 2 + length], at + 2 + length
        if length < 2 or marker in _OTHER_FRAMES or (marker in _FRAMES and frame is not None):
            return False
        if marker in _FRAMES:
            frame = _read_frame(body)
        elif marker in _TABLES:
            tables.add(_TABLES[marker])
        elif marker == _ADOBE and bytes(body[:5]) == b"Adobe" and len(body) >= 12:
            adobe = body[11]
        elif marker == _SCAN:
            is_whole = data.rfind(bytes([0xFF, _END]), at) > 0
            return is_whole and len(tables) == len(_TABLES) and frame is not None and _is_usual(frame, adobe)
    return False


def _read_frame(body: bytes) -> _Frame | None:
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        return None
    parts = [body[first : first + 2] for first in range(6, 6 + 3 * body[5], 3)]
    components = tuple((name, sampling >> 4, sampling & 15) for name, sampling in parts)
    return _Frame(body[0], body[1] << 8 | body[2], components)


def _is_usual(frame: _Frame, adobe: int | None) -> bool:
    """Return whether the components are gray or YCbCr; `adobe` is the color transform that Adobe notes."""
    if frame.bits != _BITS or not frame.height:
        return False
    names, *samplings = zip(*frame.components, strict=True) if frame.components else ((),)
    if len(names) == 1:
        return True
    luma, *chroma = zip(*samplings, strict=True) if samplings else ((),)
    is_color = len(names) == 3 and names != tuple(b"RGB") and adobe in (None, 1)
    return is_color and luma in _SAMPLINGS and set(chroma) == {(1, 1)}
