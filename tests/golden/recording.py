"""What the golden tests share: plain values to compare, files on disk, and the recorded files."""

import contextlib
import gzip
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent


def read(name):
    """Return what was recorded under a name; nothing if the file is being made for the first time."""
    path = FOLDER / f"{name}.json.gz"
    return json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}


def write(name, found):
    """Record values as JSON; the file's bytes depend on them alone."""
    text = json.dumps(found, separators=(",", ":"), sort_keys=True)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def update(name, subjects, observe):
    """Record what is observed of each subject; those whose library is missing stay as they are."""
    found = read(name)
    for subject in subjects:
        with contextlib.suppress(pytest.skip.Exception):
            found[subject] = observe(subject)
    write(name, found)


@contextlib.contextmanager
def in_folder_of_files():
    """Work in a temporary folder with the files of `write_files`."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_files(Path(folder))
        yield


def plain(value):
    """Return a value that JSON can hold, with the types of arrays, floats to the last bit."""
    if hasattr(value, "row_splits"):
        return {"ragged": [plain(value.values), [plain(splits) for splits in value.row_splits]]}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic) or type(value).__module__ == "torch":
        array = np.asarray(value)
        flat = array.ravel().tolist()
        hexed = [one.hex() for one in flat] if array.dtype.kind == "f" else flat
        return [str(array.dtype), list(array.shape), hexed]
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, bytes):
        return f"bytes {value.hex()}"
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "decode") and hasattr(value, "to_pillow"):
        return {"picture": plain(value.decode())}
    raise TypeError(f"cannot record a {type(value).__name__}")


def write_files(folder):
    """Write a few small files of each kind into a folder, for those kinds whose library is installed."""
    write_pictures(folder)
    write_tar(folder)
    write_tables(folder)


def write_pictures(folder):
    """PNG, because what a JPEG decodes to is up to its library."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return
    for label, name in enumerate(["cat", "dog"]):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3) * (1 + number) + 7 * label
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")


def write_tar(folder):
    for shard in range(3):
        with tarfile.open(folder / f"{shard}.tar", "w") as file:
            for number in range(shard * 5, shard * 5 + 5):
                member = tarfile.TarInfo(f"{number:04d}.cls")
                data = str(number).encode()
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))


def write_tables(folder):
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        pass
    else:
        for part in range(2):
            rows = range(part * 20, part * 20 + 20)
            table = pa.table({"label": list(rows), "name": [f"row {row}" for row in rows]})
            parquet.write_table(table, folder / f"{part}.parquet", row_group_size=6)
    try:
        import h5py
    except ModuleNotFoundError:
        pass
    else:
        with h5py.File(folder / "arrays.h5", "w") as file:
            file["x"], file["y"] = np.arange(12.0).reshape(6, 2), np.arange(6)
    try:
        import zarr
    except ModuleNotFoundError:
        return
    group = zarr.open_group(os.fspath(folder / "arrays.zarr"), mode="w")
    for name, array in {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}.items():
        group.create_array(name, data=array, chunks=(4, *array.shape[1:]))
