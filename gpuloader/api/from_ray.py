"""`from_ray`: load a shard of Ray Data through the loader's slots, copy stream and leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuloader.api.loader import DataLoader
from gpuloader.errors import import_package
from gpuloader.sources.block import Block, Part
from gpuloader.sources.dataset import IterableDataset


def from_ray(shard: Any, batch_size: int, places: Any = None, **options: Any) -> DataLoader[Any]:
    """Return a loader over a shard of Ray Data; each loop over it is a pass over the shard.

    Ray yields tables in its object store. The loader copies their columns straight into its slots, and treats
    them like those of any dataset. A batch is a dict with one array, `Ragged` or list of Python objects per
    column, as for `ParquetDataset`.

    Parameters
    ----------
    shard : ray.data.DataIterator or ray.data.Dataset
        What ``ray.train.get_dataset_shard()`` returns, one of ``Dataset.streaming_split()``, or a
        whole dataset.
    batch_size : int
        Samples per batch.
    places : place, str, or list of them, or None
        Where batches land, as for `DataLoader`.
    **options
        Other options of `DataLoader`, such as ``drop_last=True``. One thread of this process reads ahead of
        the consumer; ``num_workers=0`` reads in the consumer's thread. Worker processes, several threads and
        `shuffle` are refused, because Ray itself reads in parallel and shuffles. Ray also orders the blocks,
        so a state taken in the middle of a pass cannot be resumed.

    Raises
    ------
    MissingPackage
        Ray is not installed.
    TypeError
        The shard has no ``iter_batches``.
    ValueError
        An option does not apply to Ray Data.
    DataFileError
        Raised while reading: a column of numbers has a null, or a column of text is not valid UTF-8. The
        message names the column.

    Examples
    --------
    Two workers of Ray Train, each reading half of a dataset::

        def train():
            shard = ray.train.get_dataset_shard("train")
            for batch in gpuloader.from_ray(shard, batch_size=100, places="gpu:0"):
                step(batch["image"], batch["label"])
    """
    import_package("ray.data", "reading a shard of Ray Data", "ray", "ray")
    if not callable(getattr(shard, "iter_batches", None)):
        raise TypeError(
            f"expected a shard or dataset of Ray Data, got {type(shard).__name__}; see "
            "ray.train.get_dataset_shard() and Dataset.streaming_split()"
        )
    # Ray's blocks arrive in one stream, which workers would have to share. One thread overlaps it with the
    # loop.
    options = {"num_workers": 1, "worker_type": "thread", **options}
    if options["num_workers"] not in (0, 1) or options["worker_type"] != "thread":
        raise ValueError(
            "a shard of Ray Data is read by one thread of this process, since Ray itself reads in parallel: "
            "pass num_workers=0 or 1, and leave out worker_type"
        )
    return DataLoader(RayShard(shard), places=places, batch_size=batch_size, **options)


class RayShard(IterableDataset[dict[str, Any]]):
    """The rows of a shard of Ray Data; a sample is a dict with one value per column.

    Parameters
    ----------
    shard : ray.data.DataIterator or ray.data.Dataset
        The source of the rows; must have ``iter_batches``.
    """

    def __init__(self, shard: Any) -> None:
        self._shard = shard

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: Ray determines the order of the rows."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: ARG002 - the signature of datasets
        """Raise `ValueError`: Ray may yield the rows in a different order, so none can be skipped safely."""
        raise ValueError(
            "a pass over a shard of Ray Data cannot be resumed in its middle, because Ray may yield the rows "
            "in a different order; save states between epochs, or call set_epoch() to start an epoch"
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self.iter_blocks(1):
            yield from block

    def iter_blocks(self, size: int) -> Iterator[Block]:
        """Yield the samples in columns, `size` per block; the last block may be shorter."""
        # Imported late: it needs pyarrow, which only users of Ray must have.
        from gpuloader.sources.tables.arrow import check_values, columns_of

        for table in self._shard.iter_batches(batch_size=size, batch_format="pyarrow"):
            if len(table):  # Ray yields one empty table for a shard without rows
                check_values(table)
                yield Block([Part(columns_of(table), slice(0, len(table)))])
