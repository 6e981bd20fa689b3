"""What a case's loader reads, and the loader. Worker processes import this module."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import gpuloader
from gpuloader import DataLoader, Dataset, IterableDataset, get_worker_info
from gpuloader.testing import simulated_places
from gpuloader.transforms import Cast, Pad
from tests.chaos import oracle
from tests.chaos.case import Case
from tests.chaos.oracle import MOST, is_broken, sample_of, stack
from tests.chaos.server import ATTEMPTS, TIMEOUT
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


def decode(case: Case, members: dict[str, Any]) -> Any:
    return sample_of(case, int(members["number"]))


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
        case "concat" | "mix":
            cuts = (0, half, case.count) if half else (0, case.count)
            parts = [Samples(case, troubles, first, end) for first, end in pairwise(cuts)]
            if case.source == "concat":
                return gpuloader.ConcatDataset(parts)
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

            rows = [oracle.values(number, case.width).tolist() for number in part]
            x = pa.array(rows, pa.list_(pa.float32(), case.width))
            pq.write_table(pa.table({"x": x, "id": pa.array(part)}), files[-1])
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
    return gpuloader.TarDataset(files, partial(decode, case), **options)


def _write_pictures(case: Case, folder: str) -> Any:
    """Write pictures of one color each into two folders, some of which cannot be decoded."""
    from PIL import Image

    for number in range(case.count):
        path = Path(folder, "ab"[oracle.label_of(case, number)], f"{number:04d}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_broken(case, number):
            path.write_bytes(b"broken" * (number % 2))
        else:
            Image.new("RGB", oracle.SIZE[::-1], oracle.color_of(number)).save(path)
    return gpuloader.ImageFolder(folder)


def make_reader(case: Case, troubles: Troubles, _: str) -> Any:

    def samples() -> Iterator[Any]:
        for number in range(case.count):
            troubles.visit(number)
            yield sample_of(case, number)

    reader = samples
    if case.source == "reader of lists":
        reader = gpuloader.batch(samples, case.batch_size, drop_last=case.drop_last)
    elif case.source == "reader of batches":
        lists = gpuloader.batch(samples, case.batch_size, drop_last=case.drop_last)

        def reader() -> Iterator[Any]:
            for listed in lists():
                yield [np.stack([sample[field] for sample in listed]) for field in range(2)]

    match case.wrap:
        case "buffered":
            return gpuloader.reader.buffered(reader, 3)
        case "xmap":
            return gpuloader.reader.xmap_readers(_same, reader, 2, 4, order=True)
        case "multiprocess":
            return gpuloader.reader.multiprocess_reader([reader], queue_size=3)
    return reader


def _same(item: Any) -> Any:
    return item


class Source:
    """Makes the loaders of one case, all over the same source."""

    def __init__(self, case: Case, folder: str) -> None:
        self.case = case
        self.server = Path(folder, "server").read_text() if case.served else ""
        self.troubles = Troubles(folder, case.faults, case.pause)
        make = make_reader if case.is_reader else make_dataset
        self._source = make(case, self.troubles, folder)

    def open(self, *, iterable: bool = True) -> Any:
        return self._open_reader(iterable) if self.case.is_reader else self._open_dataset()

    def close(self) -> None:
        """Close the files of the dataset, if it keeps some open."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    def _places(self) -> Any:
        case = self.case
        return ["cpu"] * case.places if case.place == "cpu" else simulated_places(case.places, case.seed)

    def _open_reader(self, iterable: bool) -> Any:
        case = self.case
        loader = DataLoader.from_generator(
            feed_list=feeds(case) if case.declared or not iterable else None,
            capacity=case.capacity,
            use_double_buffer=case.read_ahead,
            iterable=iterable,
            return_list=True,
            use_multiprocess=case.multiprocess,
            drop_last=case.drop_last,
            output=output_of(case),
            static=case.static and iterable,
        )
        places = self._places()
        match case.source:
            case "reader of samples":
                return loader.set_sample_generator(self._source, case.batch_size, case.drop_last, places)
            case "reader of lists":
                return loader.set_sample_list_generator(self._source, places)
        return loader.set_batch_generator(self._source, places)

    def _open_dataset(self) -> Any:
        case = self.case
        options: dict[str, Any] = {"batch_size": case.batch_size, "drop_last": case.drop_last}
        if case.order == "batches":
            options = {"batch_sampler": oracle.drawn_batches(case)}
        elif case.order == "sampler":
            options["sampler"] = oracle.drawn_order(case)
        elif case.order == "shuffle":
            options["shuffle"] = True
        if case.form == "ragged":
            options |= {"pad": {"tail": -1}} if case.pad else {"ragged": ["tail"]}
        if case.program:
            options["transforms"] = [program_of(case)]
        if case.remainder:
            options |= {"split": "shards", "uneven": case.remainder}
        if case.ranks > 1:
            options |= {"shard": (case.rank, case.ranks), "uneven": case.uneven}
        if case.source == "pictures":
            options["on_bad"] = "skip"
        if case.face and find_spec("torch") is not None:
            from gpuloader.torch import DataLoader as TorchLoader

            if case.in_processes:
                options |= {"multiprocessing_context": case.method, "persistent_workers": case.persistent}
                options["prefetch_factor"] = case.prefetch_factor
            return TorchLoader(self._source, num_workers=case.workers, timeout=case.timeout, **options)
        if case.in_processes:
            options["start_method"] = case.method
        loader = DataLoader(
            self._source,
            places="cpu" if case.prefetched else self._places(),
            static=case.static,
            num_workers=case.workers,
            worker_type="thread" if case.method == "thread" else "process",
            prefetch_factor=case.prefetch_factor,
            use_buffer_reader=case.read_ahead,
            timeout=case.timeout,
            in_order=case.in_order,
            persistent_workers=case.persistent,
            on_worker_death="respawn" if case.respawn else "raise",
            cache=case.cache or None,
            output=output_of(case),
            seed=case.seed,
            **options,
        )
        if case.prefetched:
            return gpuloader.prefetch(loader, self._places(), case.capacity, drop_last=case.drop_last)
        return loader


def program_of(case: Case) -> Any:
    if case.program == "pad":
        return Pad("tail", MOST, -1)
    return Cast({"array": None, "tuple": "0"}.get(case.form, "x"), "int32")


def output_of(case: Case) -> str | None:
    """Return the library of the batches; NumPy stands for PyTorch where that is not installed."""
    return "numpy" if case.output == "torch" and find_spec("torch") is None else case.output or None


def feeds(case: Case) -> list[Any]:
    return [gpuloader.data("x", [None, case.width]), gpuloader.data("id", [None], "int64")]
