"""`DataLoader.from_dataset`: make a loader over a dataset of text files, as in Paddle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from gpuloader.base.errors import BadType
from gpuloader.devices.places import parse_places
from gpuloader.fields.spec import FeedSpec
from gpuloader.loader.generator_loader import GeneratorLoader
from gpuloader.sources.readers.decorators import batch

_BATCHES_AHEAD = 2
"""Batches per place that are read ahead."""


@runtime_checkable
class FileDataset(Protocol):
    """What `from_dataset` reads: the datasets of `gpuloader.fluid.DatasetFactory`."""

    feeds: Sequence[FeedSpec]
    batch_size: int

    def read(self) -> Iterator[Any]:
        """Return an iterator over the samples of an epoch, each a tuple with one value per feed."""


def from_dataset(dataset: FileDataset, places: Any, drop_last: bool = True) -> GeneratorLoader:
    r"""Return a loader that reads a dataset of text files, like Paddle's `DataLoader.from_dataset`.

    Parameters
    ----------
    dataset : object
        A dataset made by `gpuloader.fluid.DatasetFactory`.
    places : place, str, or list of them
        Where batches land. Consecutive batches go to them in turn.
    drop_last : bool
        True drops an incomplete last batch, and a last step that lacks a batch for any of several places.
        False delivers both.

    Returns
    -------
    GeneratorLoader
        A loader whose steps are lists with one dict per place. Every loop reads the dataset from its start,
        in the order of its files.

    Raises
    ------
    TypeError
        The dataset is of another kind.
    ValueError
        The dataset has no feeds, or a place is unknown.

    Examples
    --------
    >>> import tempfile
    >>> from gpuloader import DataLoader, data, fluid
    >>> dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    >>> dataset.set_batch_size(2)
    >>> dataset.set_use_var([data("x", [None, 2]), data("y", [None, 1], "int64")])
    >>> with tempfile.NamedTemporaryFile("w") as file:
    ...     _ = file.write("2 0.5 1.5 1 7\n2 2.5 3.5 1 8\n2 4.5 5.5 1 9\n")
    ...     file.flush()
    ...     dataset.set_filelist([file.name])
    ...     loader = DataLoader.from_dataset(dataset, places="cpu", drop_last=False)
    ...     print([step[0]["y"].ravel().tolist() for step in loader])
    [[7, 8], [9]]
    """
    if not isinstance(dataset, FileDataset):
        raise BadType(
            f"dataset must be one that gpuloader.fluid.DatasetFactory makes, got {type(dataset).__name__}; "
            "for other datasets, use DataLoader(dataset)"
        )
    parsed = parse_places(places)
    loader = GeneratorLoader(
        dataset.feeds,
        _BATCHES_AHEAD * len(parsed),
        use_double_buffer=True,
        iterable=True,
        return_list=False,
        use_multiprocess=False,
        drop_last=drop_last,
    )
    return loader.set_sample_list_generator(batch(dataset.read, dataset.batch_size, drop_last), parsed)
