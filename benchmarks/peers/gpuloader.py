"""The cases with gpuloader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import Loader, workers
from benchmarks.peers.cases import Case
from benchmarks.peers.samples import Jpegs, Pictures, Stream
from gpuloader import DataLoader, IterableDataset, TensorDataset, data


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return loaders that use the consumer's thread, worker processes, worker threads, or a generator."""
    dataset = case.make(case.length)
    match case.name:
        case "arrays":
            tensors = TensorDataset([dataset.images, dataset.labels])
            return {"TensorDataset": _load(case, tensors)}
        case "lists" | "images":
            return {workers(count): _load(case, dataset, count) for count in (0, 2)}
        case "jpeg":
            return {
                workers(2): _load(case, dataset, 2),
                workers(2, "thread"): _load(case, dataset, 2, worker_type="thread"),
                f"its own Resize, {workers(2, 'thread')}": _resize(case, dataset),
            }
        case "pictures":
            return _open_pictures(case, dataset)
        case "waits":
            return {workers(16, "thread"): _load(case, dataset, 16, worker_type="thread")}
        case "small":
            loaders = {workers(count): _load(case, dataset, count) for count in (0, 1)}
            return {"TensorDataset": _load(case, TensorDataset([dataset.rows])), **loaders}
        case "stream" | "stream_lists":
            return {way: _generate(case, dataset, ahead) for way, ahead in _WAYS.items()} | _iterate(case)
        case "ready" | "ready_images":
            capacity = 8 if case.name == "ready" else 4
            made = {way: _pass_on(dataset, ahead, capacity) for way, ahead in _WAYS.items()}
            made["generator, sync, copy=False"] = _pass_on(dataset, False, capacity, copy=False)
            return made | _iterate(case) | _iterate(case, copy=False)
    return {}


def touch(batch: Any) -> object:
    """Read the first number of the first array; with feeds, a batch is a list of fields for each place."""
    first = batch[0]
    return (first[0] if isinstance(first, list) else first).item(0)


_WAYS = {"generator, async": True, "generator, sync": False}


def _load(case: Case, dataset: Any, count: int = 0, **options: Any) -> Any:
    return DataLoader(
        dataset,
        places="cpu",
        batch_size=case.size,
        shuffle=case.shuffle,
        num_workers=count,
        persistent_workers=count > 0,
        **options,
    )


def _resize(case: Case, dataset: Jpegs) -> Any:
    from gpuloader.transforms import Resize

    # The loader decodes and resizes the files, to the pixels that the other ways get from Pillow.
    files = [(dataset.file(index), index) for index in range(len(dataset))]
    steps = [Resize("0", (dataset.SIZE, dataset.SIZE), filter="bicubic")]
    return _load(case, files, 2, worker_type="thread", transforms=steps)


def _open_pictures(case: Case, dataset: Pictures) -> dict[str, Loader]:
    from gpuloader.transforms import Normalize, RandomFlip, RandomResizedCrop

    files = [(dataset.file(index), index) for index in range(len(dataset))]
    ways = {"exactly Pillow's pixels": False, "scaled while decoding": True}
    return {
        way: _load(
            case,
            files,
            2,
            worker_type="thread",
            transforms=[
                RandomResizedCrop("0", dataset.SIZE, scaled=scaled),
                RandomFlip("0"),
                Normalize("0", dataset.MEAN, dataset.STD, scale=1 / 255),
            ],
        )
        for way, scaled in ways.items()
    }


def _iterate(case: Case, **options: Any) -> dict[str, Loader]:
    stream: Stream = case.make(case.length)

    class Iterated(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return stream.samples()

    name = ", ".join(["IterableDataset", *(f"{option}={value}" for option, value in options.items())])
    return {name: DataLoader(Iterated(), places="cpu", batch_size=case.batch_size, **options)}


def _generate(case: Case, stream: Any, ahead: bool) -> Any:
    fields = [data("image", [None, 784]), data("label", [None, 1], "int64")]
    loader = DataLoader.from_generator(fields, capacity=8, use_double_buffer=ahead, return_list=True)
    return loader.set_sample_generator(lambda: iter(stream), batch_size=case.size, places="cpu")


def _pass_on(stream: Any, ahead: bool, capacity: int, copy: bool = True) -> Any:
    loader = DataLoader.from_generator(
        capacity=capacity, return_list=True, use_double_buffer=ahead, copy=copy
    )
    return loader.set_batch_generator(lambda: iter(stream), places="cpu")
