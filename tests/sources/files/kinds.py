"""A file of numbers for each kind of dataset in files, and how it is written."""

import numpy as np
import pytest

from gpuloader import CSVDataset, HDF5Dataset, JSONLDataset, ParquetDataset, TarDataset, ZarrDataset
from tests.sources.files.tar_files import write_tar


def write_parquet(path, numbers):
    pa, pq = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    pq.write_table(pa.table({"x": numbers}), path, row_group_size=10)


def write_members(path, numbers):
    write_tar(path, [(f"{number}.x", b"%d" % number) for number in numbers])


def write_csv(path, numbers):
    pytest.importorskip("pyarrow")
    path.write_text("x\n" + "".join(f"{number}\n" for number in numbers))


def write_jsonl(path, numbers):
    pytest.importorskip("pyarrow")
    path.write_text("".join(f'{{"x": {number}}}\n' for number in numbers))


def write_hdf5(path, numbers):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["x"] = np.array(numbers)


def write_zarr(path, numbers):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("x", data=np.array(numbers), chunks=(10,))
    zarr.consolidate_metadata(group.store)  # which a server that lists nothing needs


STREAMS = {
    "parquet": (ParquetDataset, write_parquet),
    "tar": (TarDataset, write_members),
    "csv": (CSVDataset, write_csv),
    "jsonl": (JSONLDataset, write_jsonl),
}
KINDS = {**STREAMS, "h5": (HDF5Dataset, write_hdf5), "zarr": (ZarrDataset, write_zarr)}


def numbers_of(loader):
    """Return the numbers of an epoch, which are those of all files."""
    return sorted(int(number) for batch in loader for number in batch["x"])
