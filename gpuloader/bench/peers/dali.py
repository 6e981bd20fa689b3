"""The case of pictures with NVIDIA DALI on the CPU, which has its own decoder and runs without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuloader.bench.cases import Case
from gpuloader.bench.peers import Loader, workers
from gpuloader.bench.samples import Pictures


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return a pipeline of DALI's own operators, on as many threads as gpuloader has workers."""
    return {workers(2, "thread"): _Pipeline(case, case.make(case.length), 2)}


def touch(batch: Any) -> object:
    """Read the first number of the first image."""
    return np.asarray(batch[0][0]).item(0)


class _Pipeline:
    """A pipeline that is fed from memory, batch by batch, in a new order each epoch."""

    def __init__(self, case: Case, dataset: Pictures, threads: int) -> None:
        from nvidia.dali import fn, pipeline_def, types

        self._length = len(dataset)
        self._size = case.size
        self._files = [np.frombuffer(dataset.file(index), np.uint8) for index in range(len(dataset))]
        self._random = np.random.default_rng(0)
        size, batches = case.size, self._batches()

        @pipeline_def(batch_size=size, num_threads=threads, device_id=None, seed=0)  # type: ignore[untyped-decorator,unused-ignore]
        def read() -> Any:
            files, labels = fn.external_source(
                source=lambda: next(batches), num_outputs=2, dtype=[types.UINT8, types.INT64]
            )
            images = fn.decoders.image_random_crop(files, device="cpu", output_type=types.RGB)
            images = fn.resize(images, size=(dataset.SIZE, dataset.SIZE), interp_type=types.INTERP_LINEAR)
            images = fn.crop_mirror_normalize(
                images,
                dtype=types.FLOAT,
                output_layout="CHW",
                mean=[255 * part for part in dataset.MEAN],
                std=[255 * part for part in dataset.STD],
                mirror=fn.random.coin_flip(),
            )
            return images, labels

        self._pipeline = read()
        self._pipeline.build()

    def _batches(self) -> Iterator[tuple[list[Any], Any]]:
        while True:
            order = self._random.permutation(self._length)
            for start in range(0, self._length, self._size):
                chosen = order[start : start + self._size]
                yield [self._files[index] for index in chosen.tolist()], chosen

    def __iter__(self) -> Iterator[Any]:
        for _ in range(-(-self._length // self._size)):
            yield self._pipeline.run()
