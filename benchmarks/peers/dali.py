"""The case of pictures with NVIDIA DALI on the CPU, which has its own decoder and runs without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measure import Endless
from benchmarks.peers import Loader, workers
from benchmarks.peers.cases import Case
from benchmarks.peers.samples import Pictures


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return a pipeline of DALI's own operators, on as many threads as gpuloader has workers."""
    run = make_pipeline(case, case.make(case.length), 2)
    return {workers(2, "thread"): keep_running(run, -(-case.length // case.size))}


_AHEAD = 3  # batches that a pipeline has made or begun while nobody asks for them


def touch(batch: Any) -> object:
    """Read the first number of the first image."""
    return np.asarray(batch[0][0]).item(0)


def keep_running(run: Callable[[], Any], epoch: int) -> Endless:
    """Return epochs of so many batches of a pipeline, which runs ahead even between them."""
    return Endless(iter(run, None), epoch, _AHEAD)


def make_pipeline(case: Case, dataset: Pictures, threads: int) -> Callable[[], Any]:
    """Return what runs a pipeline that is fed from memory, batch by batch, in a new order each epoch."""
    from nvidia.dali import fn, pipeline_def, types

    batches = _feed(dataset, case.size)

    @pipeline_def(batch_size=case.size, num_threads=threads, device_id=None, seed=0)
    def read() -> Any:
        files, labels = fn.external_source(
            source=lambda: next(batches), num_outputs=2, dtype=[types.UINT8, types.INT64]
        )
        return augment(files, dataset.side), labels

    return build(read())


def build(pipeline: Any) -> Callable[[], Any]:
    """Return what runs a pipeline, once it is built."""
    pipeline.build()
    run: Callable[[], Any] = pipeline.run
    return run


def augment(files: Any, side: int) -> Any:
    """Return random windows of files, as in NVIDIA's own training programs: only they are decoded."""
    from nvidia.dali import fn, types

    images = fn.decoders.image_random_crop(files, device="cpu", output_type=types.RGB)
    images = fn.resize(images, size=(side, side), interp_type=types.INTERP_LINEAR)
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * part for part in Pictures.MEAN],
        std=[255 * part for part in Pictures.STD],
        mirror=fn.random.coin_flip(),
    )


def _feed(dataset: Pictures, size: int) -> Iterator[tuple[list[Any], Any]]:
    files = [np.frombuffer(dataset.file(index), np.uint8) for index in range(len(dataset))]
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(len(files))
        for start in range(0, len(files), size):
            chosen = order[start : start + size]
            yield [files[index] for index in chosen.tolist()], chosen
