"""Measure loaders without workers where reading a batch takes as long as a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter, sleep
from typing import Any

from benchmarks.measure import Result, interleave
from gpuloader import DataLoader
from gpuloader.bench.overlap import Timed

SECONDS = 0.008
STEPS = 10
_SIZE = 4


def no_workers(repeats: int) -> Result:
    """Time ten batches of 8 ms of reading with steps of 8 ms, with every installed peer's default."""
    dataset = Timed(STEPS, partial(sleep, SECONDS / _SIZE))
    ours = partial(DataLoader, _Singly(dataset), places="cpu", batch_size=_SIZE)
    candidates: dict[str, Callable[[], float]] = {
        "synchronous": partial(_loop, ours(use_buffer_reader=False)),
        "gpuloader": partial(_loop, ours()),
    }
    with contextlib.suppress(ImportError):
        import torch

        loader = torch.utils.data.DataLoader(_Singly(dataset), batch_size=_SIZE)
        candidates[f"torch {torch.__version__}"] = partial(_loop, loader)
    with contextlib.suppress(ImportError):
        import paddle

        paddle.set_device("cpu")
        loader = paddle.io.DataLoader(_Singly(dataset), batch_size=_SIZE, return_list=True)
        candidates[f"paddle {paddle.__version__}"] = partial(_loop, loader)
    return Result(
        f"no workers: {STEPS} batches of 8 ms of reading, steps of 8 ms",
        "ms per epoch",
        "synchronous",
        "at most 0.60 of synchronous, ahead of Paddle's",
        interleave(candidates, repeats),
    )


class _Singly:
    """A dataset without ``__getitems__``, so that all loaders read sample by sample."""

    def __init__(self, dataset: Timed) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def _loop(loader: Iterable[Any]) -> float:
    begun = perf_counter()
    for _ in loader:
        sleep(SECONDS)
    return (perf_counter() - begun) * 1e3
