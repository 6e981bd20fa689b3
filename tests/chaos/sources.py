"""What a case's loader reads, and the loader. Worker processes import this module."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

import gpuloader
from gpuloader import DataLoader, Dataset, IterableDataset, get_worker_info
from gpuloader.testing import simulated_places
from tests.chaos.case import TROUBLES, Case
from tests.chaos.oracle import drawn_batches, drawn_order, sample_of, stack, values
from tests.chaos.troubles import Troubles

if "GPULOADER_CHAOS" in os.environ:  # the attack asks every process that hangs where it is
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True)


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
    """Return the dataset of a case; files go into `folder`."""
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
    return _write_and_open(case, folder, numbers)


def _write_and_open(case: Case, folder: str, numbers: np.ndarray) -> Any:
    if case.source == "hdf5":
        import h5py

        with h5py.File(f"{folder}/a.h5", "w") as file:
            file["x"], file["id"] = stack(case, list(numbers))["x"], numbers
        return gpuloader.HDF5Dataset(f"{folder}/a.h5")
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
    return (
        gpuloader.ParquetDataset(files)
        if case.source == "parquet"
        else gpuloader.TarDataset(files, Decode(case))
    )


def make_reader(case: Case, troubles: Troubles) -> Any:
    """Return the reader of a case, wrapped in its decorator."""

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
        strikes = tuple(
            (number, fault.kind, fault.at, fault.delay)
            for number, fault in enumerate(case.faults)
            if fault.kind in TROUBLES
        )
        self.case = case
        self.troubles = Troubles(folder, strikes, case.pause)
        self._source = (
            make_reader(case, self.troubles) if case.is_reader else make_dataset(case, self.troubles, folder)
        )

    def open(self, *, iterable: bool = True) -> Any:
        """Return a new loader."""
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
            feed_list=None if iterable else feeds(case),
            capacity=case.capacity,
            use_double_buffer=case.read_ahead,
            iterable=iterable,
            return_list=True,
            use_multiprocess=case.multiprocess,
            drop_last=case.drop_last,
            output=case.output or None,
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
            options = {"batch_sampler": drawn_batches(case)}
        elif case.order == "sampler":
            options["sampler"] = drawn_order(case)
        elif case.order == "shuffle":
            options["shuffle"] = True
        if case.form == "ragged":
            options |= {"pad": {"tail": -1}} if case.pad else {"ragged": ["tail"]}
        if case.in_processes:
            options["start_method"] = case.method
        return DataLoader(
            self._source,
            places=self._places(),
            num_workers=case.workers,
            worker_type="thread" if case.method == "thread" else "process",
            prefetch_factor=case.prefetch_factor,
            use_buffer_reader=case.read_ahead,
            timeout=case.timeout,
            in_order=case.in_order,
            persistent_workers=case.persistent,
            on_worker_death="respawn" if case.respawn else "raise",
            cache=case.cache or None,
            output=case.output or None,
            seed=case.seed,
            **options,
        )


def feeds(case: Case) -> list[Any]:
    """Return the declared fields of a reader's samples."""
    return [gpuloader.data("x", [None, case.width]), gpuloader.data("id", [None], "int64")]
