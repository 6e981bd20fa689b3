"""`MixDataset`: several datasets read together, each with its share of the samples."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from gpuloader.checks import check_word
from gpuloader.order.order import AT_END, as_weights
from gpuloader.order.samplers import MixSampler, Sampler
from gpuloader.sources.dataset import ConcatDataset
from gpuloader.sources.dataset_base import MapStyle, S

_SHOWN = 8  # weights in a description


class MixDataset(ConcatDataset[S]):
    """Several map-style datasets, mixed in proportion to their weights.

    A loader reads its epochs in the order of `default_sampler`: among every 4,096 samples, each dataset has
    its share. With ``shuffle=True`` these are in random order, and each dataset is read in a new random order
    in every pass over it. The order depends only on the seed and the epoch, so a loader can resume in its
    middle, and ranks can divide it.

    As a map-style dataset, it holds the samples of its datasets one after another, like `ConcatDataset`. Its
    length is theirs together. ``len(loader)`` is the length of an epoch.

    Only its own order keeps the weights. So `Subset`, `random_split`, `ConcatDataset` and another
    `MixDataset` refuse a mix, and so does a loader with another sampler: split or concatenate the datasets
    before you mix them, and pass no sampler. A DataLoader of PyTorch needs
    ``sampler=mix.default_sampler(shuffle=True)``; without it, it reads the mix without its weights.

    Parameters
    ----------
    datasets : sequence of map-style datasets
        One or more datasets that are not empty. Their samples must have the same fields.
    weights : array-like
        One number above 0 per dataset; they need not sum to 1.
    at_end : str
        What happens when a dataset has been read to its end. 'stop' ends the epoch, so the other datasets are
        read in part; with `shuffle`, in another part every epoch. 'repeat' reads it again, until all have
        been read at least once. 'drop' goes on with the others, so every sample is read once.

    Raises
    ------
    TypeError
        A dataset is not map-style, or is a `MixDataset` itself.
    ValueError
        There are no datasets, one is empty, there is not one weight above 0 for each, or `at_end` is unknown.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> mix = MixDataset([["a", "b"], "stuvwxyz"], weights=[1, 2])
    >>> len(mix), [letters for letters in DataLoader(mix, places="cpu", batch_size=3)]
    (10, [['s', 'a', 't'], ['u', 'b', 'v']])
    >>> mix = MixDataset([["a", "b"], "stuvwxyz"], [1, 2], at_end="repeat")
    >>> "".join(letter for (letter,) in DataLoader(mix, places="cpu"))
    'satubvwaxybz'
    """

    _instead_of_a_mix = "mix all datasets at once, each with the product of its weights"

    def __init__(self, datasets: Iterable[MapStyle[S]], weights: ArrayLike, *, at_end: str = "stop") -> None:
        super().__init__(datasets)
        self.weights = as_weights(weights, 0, replacement=True, zero=False)
        check_word("at_end", at_end, AT_END)
        self.at_end = at_end
        if len(self.weights) != len(self.datasets):
            raise ValueError(
                f"weights must be one number per dataset: {len(self.datasets)}, got {len(self.weights)}"
            )
        sizes = np.diff(self.cumulative_sizes, prepend=0)
        if not sizes.all():
            raise ValueError(
                f"dataset {int(np.flatnonzero(sizes == 0)[0])} is empty; leave it out of the mix"
            )
        self.default_sampler(shuffle=False)  # raises if the epoch would be too long

    def __repr__(self) -> str:
        weights = ", ".join(f"{weight:g}" for weight in self.weights[:_SHOWN])
        more = ", …" if len(self.weights) > _SHOWN else ""
        epoch = len(self.default_sampler(shuffle=False))
        return (
            f"<{type(self).__name__}: {len(self):,} samples of {len(self.datasets)} datasets with the "
            f"weights {weights}{more}; {epoch:,} per epoch, at_end={self.at_end!r}>"
        )

    def default_sampler(self, shuffle: bool) -> Sampler[int]:
        """Return the sampler with which loaders read the mix, unless they are given another.

        Parameters
        ----------
        shuffle : bool
            Whether to shuffle each dataset, and the datasets among each other.

        Examples
        --------
        >>> list(MixDataset(["ab", "cd"], [1, 1]).default_sampler(shuffle=False))
        [0, 2, 1, 3]
        """
        sizes = np.diff(self.cumulative_sizes, prepend=0).tolist()
        return MixSampler(sizes, self.weights.tolist(), self.at_end, shuffle=shuffle)
