"""What a case's loader reads, apart from readers. Worker processes import this module."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import gpuloader
from gpuloader import Dataset, IterableDataset, get_worker_info
from tests.chaos.case import Case
from tests.chaos.oracle import SIZE, color_of, label_of, sample_of, stack, values
from tests.chaos.server import ATTEMPTS, TIMEOUT
from tests.chaos.steps import is_broken
from tests.chaos.troubles import Troubles


class Samples(Dataset):
    """The samples of a case, or those from `first` to before `end`."""

    def __init__(self, case: Case, troubles: Troubles, first: int = 0, end: int | None = None) -> None:
        self.case, self.troubles = case, troubles
        self.first, self.end = first, case.count if end is None else end

    def __len__(self) -> int:
        return self.end - self.first

    def __getitem__(self, index: int) -> Any:
        number = self.first + int(index)
        self.troubles.visit(number)
        return sample_of(self.case, number)


class Items(IterableDataset):
    """The samples as an iterable dataset; each of n workers yields every n-th."""

    def __init__(self, case: Case, troubles: Troubles) -> None:
        self.case, self.troubles = case, troubles

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.case.count, step):
            self.troubles.visit(number)
            yield sample_of(self.case, number)


class Stored(Dataset):
    """Samples out of a list of the package's own, visited as `Samples` are."""

    def __init__(self, case: Case, troubles: Troubles) -> None:
        self.troubles = troubles
        self.items = gpuloader.PackedList([sample_of(case, number) for number in range(case.count)])

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.troubles.visit(int(index))
        return self.items[index]


class Decode:
    """Makes a sample of a tar file's members."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, members: dict[str, Any]) -> Any:
        return sample_of(self.case, int(members["number"]))


def make_dataset(case: Case, troubles: Troubles, folder: str) -> Any:
    """Return the dataset of a case; files go into `folder`, where ``server`` has its server's URL."""
    case = replace(case, program="")
    half = case.count // 2
    numbers = np.arange(case.count, dtype=np.int64)
    match case.source:
        case "samples":
            return Samples(case, troubles)
        case "packed":
            return Stored(case, troubles)
        case "arrays":
            return gpuloader.TensorDataset(stack(case, list(numbers))[0], numbers)
        case "table":
            return {"x": stack(case, list(numbers))["x"], "id": numbers}
        case "concat":
            cuts = (0, half, case.count) if half else (0, case.count)
            parts = [Samples(case, troubles, first, end) for first, end in pairwise(cuts)]
            return gpuloader.ConcatDataset(parts)
        case "mix":
            cuts = (0, half, case.count) if half else (0, case.count)
            parts = [Samples(case, troubles, first, end) for first, end in pairwise(cuts)]
            return gpuloader.MixDataset(parts, [1, 3][: len(parts)], at_end="drop")
        case "items":
            return Items(case, troubles)
        case "pictures":
            return _write_pictures(case, f"{folder}/pictures")
    return _write_and_open(case, folder, numbers)


def _write_and_open(case: Case, folder: str, numbers: np.ndarray) -> Any:
    options = {"attempts": ATTEMPTS, "timeout": TIMEOUT} if case.served else {}
    place = Path(folder, "server").read_text() if case.served else folder
    if case.source == "hdf5":
        import h5py

        with h5py.File(f"{folder}/a.h5", "w") as file:
            file["x"], file["id"] = stack(case, list(numbers))["x"], numbers
        return gpuloader.HDF5Dataset(f"{place}/a.h5", **options)
    if case.source == "zarr":
        import zarr

        group = zarr.open_group(f"{folder}/a.zarr", mode="w", zarr_format=2)  # which may be consolidated
        for name, array in (("x", stack(case, list(numbers))["x"]), ("id", numbers)):
            group.create_array(name, data=array, chunks=(5, *array.shape[1:]))
        zarr.consolidate_metadata(group.store)
        return gpuloader.ZarrDataset(f"{place}/a.zarr", **options)
    files = []
    for share, part in enumerate(np.array_split(numbers, 4)):
        files.append(f"{folder}/{share}.{case.source}")
        if case.source == "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            rows = pa.array(
                [values(number, case.width).tolist() for number in part], pa.list_(pa.float32(), case.width)
            )
            pq.write_table(pa.table({"x": rows, "id": pa.array(part)}), files[-1])
            continue
        with tarfile.open(files[-1], "w") as shard:
            for number in part:
                text = str(number).encode()
                member = tarfile.TarInfo(f"{number:04d}.number")
                member.size = len(text)
                shard.addfile(member, io.BytesIO(text))
    files = [f"{place}/{Path(file).name}" for file in files]
    if case.source == "parquet":
        return gpuloader.ParquetDataset(files, **options)
    return gpuloader.TarDataset(files, Decode(case), **options)


def _write_pictures(case: Case, folder: str) -> Any:
    """Write pictures of one color each into two folders, some of which cannot be decoded."""
    from PIL import Image

    for number in range(case.count):
        path = Path(folder, "ab"[label_of(case, number)], f"{number:04d}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_broken(case, number):
            path.write_bytes(b"broken" * (number % 2))
        else:
            Image.new("RGB", SIZE[::-1], color_of(number)).save(path)
    return gpuloader.ImageFolder(folder)
