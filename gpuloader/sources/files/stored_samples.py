"""Samples in the form in which shards hold them: rows of an Arrow table, or members of a tar file."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.fields.convert import check_mask
from gpuloader.foreign import as_array, is_instance, is_tensor
from gpuloader.sources.images.folder import EXTENSIONS
from gpuloader.sources.images.image import Image, is_encoded
from gpuloader.sources.images.video import Video

if TYPE_CHECKING:
    import pyarrow as pa

_IMAGES = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"BM": "bmp", b"II*\0": "tif", b"MM\0*": "tif"}
"""Maps the first bytes of encoded images to file extensions; WebP's signature is not at the start."""


def to_fields(sample: Any) -> dict[str, Any]:
    """Return the fields of a sample: numbers, text, bytes, arrays, or anything else.

    Encoded images become their bytes, videos the contents of their files, and images of Pillow those of a PNG
    file.

    >>> to_fields((np.float32(0.5), Image(b"..."))), to_fields("text")
    ({'0': np.float32(0.5), '1': b'...'}, {'value': 'text'})
    """
    if isinstance(sample, Mapping):
        fields = {str(name): value for name, value in sample.items()}
        if len(fields) < len(sample):
            raise ValueError(f"two of the fields {list(sample)} have the same name in a file: rename one")
    elif isinstance(sample, tuple | list):
        names = getattr(sample, "_fields", map(str, range(len(sample))))
        fields = dict(zip(names, sample, strict=True))
    else:
        fields = {"value": sample}
    if not fields.keys() - {"__key__", "__url__"}:
        raise ValueError("a sample without fields cannot be written")
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Image):
        return value.data
    if isinstance(value, Video):
        return value.source if isinstance(value.source, bytes) else Path(value.source).read_bytes()
    if is_encoded(value):
        if isinstance(value, Mapping):  # the form in which Hugging Face stores images
            return Path(value["path"]).read_bytes() if value["bytes"] is None else value["bytes"]
        return bytes(value)
    if is_instance(value, "PIL.Image", "Image"):
        file = io.BytesIO()
        value.save(file, "PNG")
        return file.getvalue()
    check_mask(value)  # Arrow would write the numbers under the mask
    return as_array(value) if is_tensor(value) else value


def to_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return samples as the rows of a table; arrays of one shape become lists of fixed length.

    Raises
    ------
    ValueError
        The samples have different fields.
    TypeError
        Arrow has no type for a value; the message names the field.

    >>> import pytest
    >>> _ = pytest.importorskip("pyarrow")
    >>> to_table([{"x": np.zeros((2, 2), "float32"), "label": 3}]).schema.types
    [FixedSizeListType(fixed_size_list<item: fixed_size_list<item: float>[2]>[2]), DataType(int64)]
    """
    import pyarrow as pa

    for row in rows:
        if row.keys() != rows[0].keys():
            raise ValueError(f"samples must have the same fields, got {list(rows[0])} and {list(row)}")
    columns: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        try:
            columns[name] = _to_column(pa, values)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            kind = type(values[0]).__name__
            raise TypeError(f"field {name!r}: Parquet cannot hold these {kind} values: {error}") from error
    return pa.table(columns)


def _to_column(pa: Any, values: list[Any]) -> Any:
    if not all(isinstance(value, np.ndarray) for value in values):
        _check_alike(values)
        return pa.array(values)
    if len({value.shape for value in values}) > 1 or 0 in values[0].shape:
        return pa.array([value.tolist() for value in values] if values[0].ndim > 1 else values)
    stacked = np.stack(values)
    kinds = {array.dtype.kind.replace("u", "i") for array in [*values, stacked]}
    if len(kinds) > 1:  # int64 and uint64 become float64
        raise TypeError(f"arrays have the dtypes {sorted({str(value.dtype) for value in values})}")
    column = pa.array(stacked.ravel())
    for length in reversed(stacked.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column


def _check_alike(values: Sequence[Any]) -> None:
    """Raise `TypeError` for values that Arrow would change, without an error, to give them one type."""
    # Most fields end here: asking each value takes longer, and a list may have thousands.
    if (types := {*map(type, values)} - {type(None)}) in ({str}, {bytes}) or types <= {int, float, bool}:
        return
    kinds = {*map(_name_kind, values)} - {""}
    if len(kinds) > 1:
        told = " and ".join(sorted(kinds))
        raise TypeError(f"{told} need columns of their own; for a value that is missing, write None")
    if (dicts := [one for one in values if isinstance(one, Mapping)]) and not dicts[0]:
        # Arrow says that only when the file is written.
        raise TypeError("a dict without keys has no columns; write None")
    for name in next(iter(dicts), ()):
        _check_alike([one[name] for one in dicts])
    if lists := [one for one in values if isinstance(one, list | tuple)]:
        _check_alike([*chain.from_iterable(lists)])


_KINDS = (str, "text"), ((bytes, bytearray), "bytes"), (date, "dates")


def _name_kind(value: Any) -> str:
    if isinstance(value, datetime):
        return "datetimes" if value.tzinfo is None else "datetimes with a time zone"
    if isinstance(value, Mapping):
        return f"dicts of {sorted(value)}"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "")


def to_members(samples: Sequence[dict[str, Any]]) -> list[dict[str, bytes]]:
    r"""Return samples as the members of a tar file, by extension, in the form that `TarDataset` reads.

    An encoded image has the extension of its format, after the field's name unless that is ``image``; `label`
    is ``cls``. Text, arrays and anything else become ``.txt``, ``.npy`` and ``.json``.

    >>> to_members([{"image": b"\xff\xd8\xff...", "label": 3, "caption": "a cat"}])
    [{'jpg': b'\xff\xd8\xff...', 'cls': b'3', 'caption.txt': b'a cat'}]
    """
    return list(map(_to_members, samples))


def _to_members(fields: dict[str, Any]) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for name, value in fields.items():
        if name in ("__key__", "__url__"):  # of a sample that was read from a tar file
            continue
        ending, data = name, value
        if isinstance(value, bytes):
            found = next((one for magic, one in _IMAGES.items() if value.startswith(magic)), None)
            found = "webp" if value[8:12] == b"WEBP" else found
            if found and f".{name.rpartition('.')[2]}" not in EXTENSIONS:
                ending = found if name == "image" else f"{name}.{found}"
        elif name in ("label", "cls") and isinstance(value, int | np.integer):
            ending, data = "cls", str(int(value)).encode()
        elif isinstance(value, str):
            ending, data = _end(name, "txt"), value.encode()
        elif isinstance(value, np.ndarray):
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            ending, data = _end(name, "npy"), file.getvalue()
        else:
            number = value.item() if isinstance(value, np.generic) else value
            ending, data = _end(name, "json"), json.dumps(number).encode()
        is_changed = ending != ending.lower()  # members are read in lower case
        if "/" in ending or "\0" in ending or ending in members or is_changed:
            raise ValueError(f"field {name!r} cannot be a member {ending!r} of a tar file: rename the field")
        members[ending] = data
    return members


def _end(name: str, ending: str) -> str:
    return name if name.rpartition(".")[2] == ending else f"{name}.{ending}"
