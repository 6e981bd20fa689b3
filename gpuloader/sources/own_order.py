"""Datasets that are read in an order of their own, such as a `MixDataset`, must not lose it inside others."""

from __future__ import annotations

from gpuloader.base.errors import BadType


def refuse_mix(dataset: object, reader: str, instead: str) -> None:
    """Raise `TypeError` if a dataset has an order of its own, in which `reader` would not read it.

    Parameters
    ----------
    dataset : object
        The dataset.
    reader : str
        What is about to read it, such as "a Subset".
    instead : str
        What the user may do instead.

    Examples
    --------
    >>> from gpuloader import MixDataset
    >>> mix = MixDataset(["ab", "cd"], [1, 2])
    >>> refuse_mix(mix, "a Subset", "take subsets first")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuloader.base.errors.BadType: a Subset would read the MixDataset without its weights: take subsets fi...
    """
    if has_own_order(dataset):
        raise BadType(
            f"{reader} would read the {type(dataset).__name__} without its weights: {instead}; to do without "
            "the weights, pass ConcatDataset(mix.datasets)"
        )


def has_own_order(dataset: object) -> bool:
    """Return whether loaders read a dataset in an order of its own.

    >>> has_own_order("abc")
    False
    """
    return callable(getattr(dataset, "default_sampler", None))
