"""Options for remote stores, such as credentials: they reach every worker, and show nowhere."""

import pickle
import traceback

import numpy as np
import pytest

from gpuloader import DataLoader, HDF5Dataset, ParquetDataset, SourceError, TarDataset, ZarrDataset
from tests.sample_sets import INLINE, PROCESSES, THREADS
from tests.sources.files.serving import serve
from tests.sources.files.tar_files import write_tar

TOKEN = "Bearer s3cret"
OPTIONS = {"headers": {"Authorization": TOKEN}}
FORKSERVER = {"num_workers": 2, "start_method": "forkserver"}


def write_parquet(folder):
    pa, pq = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    pq.write_table(pa.table({"x": np.arange(9)}), folder / "a.parquet", row_group_size=3)
    return ParquetDataset, "a.parquet"


def write_shard(folder):
    write_tar(folder / "a.tar", [("1.cls", b"1")])
    return TarDataset, "a.tar"


def write_hdf5(folder):
    with pytest.importorskip("h5py").File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(9)
    return HDF5Dataset, "a.h5"


def write_zarr(folder):
    pytest.importorskip("zarr").save(folder / "x.zarr", np.arange(9))
    return ZarrDataset, "x.zarr"


@pytest.fixture(params=[write_parquet, write_shard, write_hdf5, write_zarr])
def written(request, tmp_path, remote):
    return request.param(tmp_path)


@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES, FORKSERVER], ids=str)
def test_options_reach_every_worker(written, tmp_path, workers):
    kind, name = written
    with serve(tmp_path, token=TOKEN) as served:
        dataset = kind(f"{served.url}/{name}", storage_options=OPTIONS)
        found = list(DataLoader(dataset, places="cpu", batch_size=3, **workers))
        assert len(found) == (1 if kind is TarDataset else 3)
        assert len(list(DataLoader(pickle.loads(pickle.dumps(dataset)), places="cpu"))) >= len(found)


def test_options_show_nowhere(written, tmp_path):
    kind, name = written
    with serve(tmp_path, token=TOKEN) as served:
        dataset = kind(f"{served.url}/{name}", storage_options=OPTIONS)
        loader = DataLoader(dataset, places="cpu", batch_size=3)
        for _ in loader:
            assert "s3cret" not in repr([dataset, loader, loader.state_dict(), dataset._tries])
        options = {"headers": {"Authorization": "Bearer s3cret, but wrong"}}
        with pytest.raises(SourceError, match="401") as caught:
            list(DataLoader(kind(f"{served.url}/{name}", storage_options=options), places="cpu"))
    assert caught.value.attempts == 1
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(TypeError, match="storage_options must be a dict or None, got str"):
        kind(name, storage_options="s3cret")
