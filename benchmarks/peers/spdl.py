"""The cases with SPDL: its DataLoader, which uses threads, and its pipelines, which may use processes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.peers import Loader, workers
from benchmarks.peers.cases import Case
from benchmarks.peers.samples import Pictures, Stream, draw_window


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return a loader whose threads make samples, and pipelines whose threads or processes make batches.

    A pipeline passes items on in an event loop, at some hundred microseconds each. If a sample takes less,
    SPDL's users therefore make the source yield whole batches of indices or samples.
    """
    dataset = case.make(case.length)
    match case.name:
        case "arrays":
            return {workers(1, "thread"): _Batches(case, dataset.take, 1)}
        case "lists" | "images":
            take = dataset.take if case.name == "images" else partial(_collect, dataset)
            return {
                workers(2, "thread"): _Batches(case, take, 2),
                workers(2): _Batches(case, take, 2, processes=True),
            }
        case "jpeg":
            return {
                workers(2, "thread"): _load(case, dataset, 2),
                workers(2): _Batches(case, partial(_collect, dataset), 2, processes=True),
            }
        case "pictures":
            pillow = _Batches(case, partial(_collect, dataset), 2, processes=True)
            return _open_decoder(case, dataset) | {f"Pillow, {workers(2)}": pillow}
        case "waits":
            return {
                workers(16, "thread"): _load(case, dataset, 16),
                f"whole batches, {workers(16, 'thread')}": _Batches(case, partial(_collect, dataset), 16),
            }
        case "small":
            return {
                workers(1, "thread"): _Batches(case, dataset.take, 1),
                workers(1): _Batches(case, dataset.take, 1, processes=True),
            }
        case "stream" | "stream_lists" | "ready" | "ready_images":
            return {workers(1, "thread"): _Stream(case, dataset)}
    return {}


def touch(batch: Any) -> object:
    """Read the first number of the first array."""
    return batch[0].item(0)


def _open_decoder(case: Case, pictures: Pictures) -> dict[str, Loader]:
    import spdl.io

    try:
        spdl.io.demux_image(pictures.file(0))
    except RuntimeError:  # FFmpeg's libraries are not installed
        return {}
    return {f"its own decoder, {workers(2, 'thread')}": _Batches(case, _Decoding(pictures), 2)}


class _Decoding:
    """Decodes and augments a batch of pictures with SPDL's decoder, whose filters are FFmpeg's."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures

    def __call__(self, indices: list[int]) -> list[Any]:
        import spdl.io

        frames = []
        for index in indices:
            left, top, right, bottom = draw_window(375, 500)
            steps = [
                f"crop={right - left}:{bottom - top}:{left}:{top}",
                f"scale={self._pictures.SIZE}:{self._pictures.SIZE}:flags=bilinear",
                *(["hflip"] if random.random() < 0.5 else []),
                "format=pix_fmts=rgb24",
            ]
            packets = spdl.io.demux_image(self._pictures.file(index))
            frames.append(spdl.io.decode_packets(packets, filter_desc=",".join(steps)))
        pixels = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        return [self._pictures.normalize(pixels), np.asarray(indices)]


class _Order:
    """An epoch's indices, or batches of them; a shuffled case draws a new order each epoch."""

    def __init__(self, case: Case, batch_size: int | None = None) -> None:
        self._length = case.length
        self._size = batch_size
        self._generator = np.random.default_rng(0) if case.shuffle else None

    def __iter__(self) -> Iterator[Any]:
        order = list(range(self._length))
        if self._generator is not None:
            order = self._generator.permutation(self._length).tolist()
        if self._size is None:
            return iter(order)
        size = self._size
        return (order[start : start + size] for start in range(0, self._length, size))


class _Batches:
    """A pipeline that takes a whole batch of indices at once, in threads or persistent processes."""

    def __init__(self, case: Case, take: Any, count: int, *, processes: bool = False) -> None:
        self._order = _Order(case, case.size)
        self._count = count
        self._take, self._executor = take, None
        if processes:
            self._take = _take_kept
            self._executor = ProcessPoolExecutor(count, get_context("fork"), _keep, (take,))

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        builder = PipelineBuilder().add_source(self._order)
        yield from _run(
            builder.pipe(self._take, executor=self._executor, concurrency=self._count, output_order="input"),
            threads=self._count,
        )


class _Stream:
    """A pipeline over a stream. The source gathers samples into batches and passes ready batches on."""

    def __init__(self, case: Case, stream: Stream) -> None:
        self._size = case.batch_size
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        if self._size is None:
            builder = PipelineBuilder().add_source(self._stream)
        else:
            builder = PipelineBuilder().add_source(_gather(self._stream, self._size)).pipe(_stack)
        yield from _run(builder, threads=1)


def _gather(stream: Stream, size: int) -> Iterator[list[Any]]:
    samples = iter(stream)
    while chosen := list(itertools.islice(samples, size)):
        yield chosen


def _run(builder: Any, threads: int) -> Iterator[Any]:
    pipeline = builder.add_sink(3).build(num_threads=threads)
    with pipeline.auto_stop():
        yield from pipeline


def _load(case: Case, dataset: Any, threads: int) -> Any:
    from spdl.dataloader import DataLoader

    return DataLoader(
        _Order(case),
        preprocessor=dataset.__getitem__,
        batch_size=case.size,
        aggregator=_stack,
        num_threads=threads,
        output_order="input",
    )


def _stack(samples: list[Any]) -> list[Any]:
    return [_join(values) for values in zip(*samples, strict=True)]


def _join(values: tuple[Any, ...]) -> Any:
    return np.asarray(values, np.float32) if isinstance(values[0], list) else np.stack(values)


def _collect(dataset: Any, indices: list[int]) -> list[Any]:
    return _stack([dataset[index] for index in indices])


_kept: list[Any] = []


def _keep(take: Any) -> None:
    _kept[:] = [take]


def _take_kept(indices: list[int]) -> Any:
    return _kept[0](indices)
