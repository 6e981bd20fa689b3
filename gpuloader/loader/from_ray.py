"""`from_ray`: a shard of Ray Data through our slots, copy stream and leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuloader.base.errors import missing_package
from gpuloader.loader.dataset_loader import DataLoader
from gpuloader.sources.block import Block, Part
from gpuloader.sources.dataset_base import IterableDataset


def from_ray(shard: Any, batch_size: int, places: Any = None, **options: Any) -> DataLoader:
    """Return a loader around a shard of Ray Data; each loop over it is a pass over the shard.

    Ray gives tables over the memory of its object store; their columns are copied from there straight into
    the loader's slots, and go on from there as those of any dataset do. A batch is a dict of one array,
    `Ragged` or list of Python objects a column, as for `ParquetDataset`.

    Parameters
    ----------
    shard : ray.data.DataIterator or ray.data.Dataset
        What ``ray.train.get_dataset_shard()`` returns, one of ``Dataset.streaming_split()``, or a
        whole dataset.
    batch_size : int
        Samples a batch.
    places : place, str, or list of them, or None
        Where batches land; as for `DataLoader`.
    **options
        More of `DataLoader`'s, ``drop_last=True`` for one. A thread of this process reads ahead of the
        consumer; with ``num_workers=0`` none does. Worker processes, several threads and `shuffle` are Ray's
        own business, and the order of its blocks is too: a state taken in the middle of a pass is refused.

    Raises
    ------
    MissingPackage
        Ray is not installed.
    TypeError
        The shard gives no batches.
    ValueError
        An option that makes no sense here.
    DataFileError
        While reading: a column of numbers has a null, or one of text what is no UTF-8; names it.

    Examples
    --------
    Two workers of Ray Train, each with its half of a dataset::

        def train():
            shard = ray.train.get_dataset_shard("train")
            for batch in gpuloader.from_ray(shard, batch_size=100, places="gpu:0"):
                step(batch["image"], batch["label"])
    """
    try:
        import ray.data  # noqa: F401
    except ImportError:
        raise missing_package("reading a shard of Ray Data", "ray", "ray") from None
    if not callable(getattr(shard, "iter_batches", None)):
        raise TypeError(
            f"expected a shard or dataset of Ray Data, got {type(shard).__name__}; see "
            "ray.train.get_dataset_shard() and Dataset.streaming_split()"
        )
    options = {"num_workers": 1, "worker_type": "thread", **options}
    if options["num_workers"] not in (0, 1) or options["worker_type"] != "thread":
        raise ValueError(
            "a shard of Ray Data is read by one thread of this process: pass num_workers=0 or 1, and leave "
            "worker_type out; Ray itself reads in parallel"
        )
    return DataLoader(RayShard(shard), places=places, batch_size=batch_size, **options)


class RayShard(IterableDataset[dict[str, Any]]):
    """The rows of a shard of Ray Data; a sample is a dict of one value a column.

    Parameters
    ----------
    shard : ray.data.DataIterator or ray.data.Dataset
        With ``iter_batches``.
    """

    def __init__(self, shard: Any) -> None:
        self._shard = shard

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: which rows come when is Ray's business."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: ARG002 - as of any dataset
        """Raise `ValueError`: what was given before would not be what comes first again."""
        raise ValueError(
            "Ray need not give the rows of a shard in the same order again, so a pass over it cannot be "
            "resumed in its middle; save states between epochs, or call set_epoch() to begin with an epoch"
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self.iter_blocks(1):
            yield from block

    def iter_blocks(self, size: int) -> Iterator[Block]:
        """Yield the samples `size` at a time, in columns; the last block is shorter."""
        # Only now: it is for those alone who have Ray.
        from gpuloader.sources.files.arrow import check_values, columns_of

        for table in self._shard.iter_batches(batch_size=size, batch_format="pyarrow"):
            if len(table):  # of a shard without rows Ray gives an empty one
                check_values(table)
                yield Block([Part(columns_of(table), slice(0, len(table)))])
