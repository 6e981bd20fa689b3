"""Zarr stores of which something is missing or broken."""

import json
import shutil
import warnings

import numpy as np
import pytest

from gpuloader import DataFileError, DataLoader, SampleError, ZarrDataset

zarr = pytest.importorskip("zarr")

X = np.arange(16).reshape(8, 2) + 1
CHUNK = {2: "1.0", 3: "c/1/0"}
METADATA = {2: ".zarray", 3: "zarr.json"}
GROUP_METADATA = {2: ".zgroup", 3: "zarr.json"}


@pytest.fixture(params=[2, 3])
def version(request):
    return request.param


@pytest.fixture
def store(tmp_path, version):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=version)
    for name in ("x", "y"):
        group.create_array(name, shape=X.shape, chunks=(2, 2), dtype=X.dtype)[:] = X
    return tmp_path / "a.zarr"


def read(store, *arguments):
    return list(DataLoader(ZarrDataset(store, *arguments), places="cpu", batch_size=8))


def change(store, version, **changes):
    path = store / "x" / METADATA[version]
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_chunk_that_is_not_stored_holds_the_fill_value(store, version):
    """By the specification, and because writers leave out such chunks."""
    change(store, version, fill_value=7)
    (store / "x" / CHUNK[version]).unlink()
    (batch,) = read(store)
    assert batch["x"].tolist() == [*X[:2].tolist(), [7, 7], [7, 7], *X[4:].tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_fill_value_a_missing_chunk_is_an_error(store, version, workers):
    if version == 3:
        pytest.skip("version 3 of Zarr demands a fill_value")
    change(store, version, fill_value=None)
    assert read(store)[0]["x"].tolist() == X.tolist()
    (store / "x" / CHUNK[version]).unlink()
    loader = DataLoader(ZarrDataset(store), places="cpu", batch_size=2, num_workers=workers)
    epoch = iter(loader)
    assert next(epoch)["x"].tolist() == X[:2].tolist()
    with pytest.raises(SampleError, match=r"a.zarr, column 'x': chunk '1.0' is missing, and the array"):
        next(epoch)
    epoch.close()


@pytest.mark.parametrize("alone", [False, True])
def test_an_array_that_would_be_unpickled_is_refused(store, version, alone):
    """Whoever wrote the array could run code here."""
    if version == 3:
        pytest.skip("version 3 of Zarr has no codec that unpickles")
    pickled = {"compressor": {"id": "pickle", "protocol": 4}, "filters": [{"id": "vlen-utf8"}]}
    change(store, version, dtype="|O", fill_value=None, **pickled)
    with pytest.raises(DataFileError, match=r"column 'x': the array is compressed by pickling"):
        ZarrDataset(store / "x" if alone else store)


@pytest.mark.parametrize(("broken", "arrays"), [("array", ()), ("array", (["x"],)), ("group", ())])
def test_broken_metadata(store, version, broken, arrays):
    path = store / "x" / METADATA[version] if broken == "array" else store / GROUP_METADATA[version]
    path.write_text("{bro")
    with pytest.raises(DataFileError, match=r"a.zarr.*: the metadata are damaged: JSONDecodeError"):
        read(store, *arrays)


def test_missing_metadata_and_a_missing_array_that_was_named(store, version):
    (store / "x" / METADATA[version]).unlink()
    with pytest.raises(DataFileError, match=r"a.zarr, column 'x': its metadata are missing"):
        read(store)
    assert read(store, ["y"])[0]["y"].tolist() == X.tolist()
    shutil.rmtree(store / "x")
    with pytest.raises(DataFileError, match=r"a.zarr, column 'x': there is no array of this name"):
        read(store, ["x", "y"])


def test_another_file_in_the_folder_is_no_damage(store):
    (store / "README").write_text("about this store")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(read(store)[0]) == ["x", "y"]
