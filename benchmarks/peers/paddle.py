"""The cases with Paddle's DataLoader.

By default it converts batches in its own thread (`use_buffer_reader`). We keep that default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import Loader, workers
from benchmarks.peers.cases import Case


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return loaders with as many workers as gpuloader's, and for arrays both kinds of dataset."""
    import paddle

    paddle.set_device("cpu")
    dataset = case.make(case.length)
    match case.name:
        case "arrays":
            tensors = [paddle.to_tensor(dataset.images), paddle.to_tensor(dataset.labels)]
            return {
                "Dataset of arrays": _load(case, dataset, 0),
                "TensorDataset": _load(case, paddle.io.TensorDataset(tensors), 0),
            }
        case "lists":
            return {workers(count): _load(case, dataset, count) for count in (0, 2)}
        case "images" | "jpeg" | "pictures":
            return {workers(2): _load(case, dataset, 2)}
        case "waits":
            return {workers(count): _load(case, dataset, count) for count in (2, 16)}
        case "small":
            return {workers(count): _load(case, dataset, count) for count in (0, 1)}
        case "stream" | "stream_lists" | "ready" | "ready_images":
            return {workers(0): _read(case, dataset)}
    return {}


def touch(batch: Any) -> object:
    """Read the first number of the first tensor."""
    return batch[0].numpy().item(0)


def _load(case: Case, dataset: Any, count: int) -> Any:
    import paddle

    return paddle.io.DataLoader(
        dataset,
        batch_size=case.size,
        shuffle=case.shuffle,
        num_workers=count,
        persistent_workers=count > 0,
    )


def _read(case: Case, stream: Any) -> Any:
    import paddle

    class Iterated(paddle.io.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return (tuple(item) for item in stream.samples())

    # Without a batch size, Paddle converts ready batches to tensors one by one and passes them on.
    return paddle.io.DataLoader(Iterated(), batch_size=case.batch_size, return_list=True)
