"""A case's loader, and the readers. Worker processes import this module."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuloader
from gpuloader import DataLoader
from gpuloader.testing import simulated_places
from gpuloader.transforms import Cast, Pad
from tests.chaos.case import Case
from tests.chaos.datasets import make_dataset
from tests.chaos.oracle import MOST, sample_of
from tests.chaos.steps import drawn_batches, drawn_order
from tests.chaos.troubles import Troubles


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
        self.case = case
        self.server = Path(folder, "server").read_text() if case.served else ""
        self.troubles = Troubles(folder, case.faults, case.pause)
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
            options = {"batch_sampler": drawn_batches(case)}
        elif case.order == "sampler":
            options["sampler"] = drawn_order(case)
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
        return (
            gpuloader.prefetch(loader, self._places(), case.capacity, drop_last=case.drop_last)
            if case.prefetched
            else loader
        )


def program_of(case: Case) -> Any:
    """Return the transform of a case."""
    if case.program == "pad":
        return Pad("tail", MOST, -1)
    return Cast({"array": None, "tuple": "0"}.get(case.form, "x"), "int32")


def output_of(case: Case) -> str | None:
    """Return the library of the batches; NumPy stands for PyTorch where that is not installed."""
    return "numpy" if case.output == "torch" and find_spec("torch") is None else case.output or None


def feeds(case: Case) -> list[Any]:
    """Return the declared fields of a reader's samples."""
    return [gpuloader.data("x", [None, case.width]), gpuloader.data("id", [None], "int64")]
