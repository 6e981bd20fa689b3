"""Samplers, which determine the samples of an epoch and their order, as in Paddle's ``paddle.io``.

A loader asks a sampler for its `order`, which depends only on seed and epoch. Outside a loader, iterating a
random sampler draws its seed from NumPy's global random state, so `numpy.random.seed` makes it repeatable.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Sized

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.base.checks import check_count
from gpuloader.order.computed import as_indices
from gpuloader.order.order import Drawn, InOrder, Mapped, Order, Shuffled, Weighted, as_weights, iterate


class Sampler:
    """Base class of samplers; a subclass yields the indices of an epoch from `__iter__`.

    Parameters
    ----------
    data_source : sized, optional
        The dataset; its length is the sampler's length, unless a subclass overrides `__len__`.

    Examples
    --------
    >>> class Backwards(Sampler):
    ...     def __iter__(self):
    ...         return iter(range(len(self) - 1, -1, -1))
    >>> list(Backwards("abc"))
    [2, 1, 0]
    """

    data_source: Sized | None = None

    def __init__(self, data_source: Sized | None = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__, which yields indices")

    def __len__(self) -> int:
        # A TypeError, because `list` asks for the length and then does without it.
        if self.data_source is None:
            raise TypeError(
                f"{type(self).__name__} has no data_source to take a length from: pass one, or define __len__"
            )
        return len(self.data_source)

    def order(self, seed: int, epoch: int) -> Order | None:  # noqa: ARG002
        """Return the indices of an epoch as an order, or None if only `__iter__` knows them.

        Parameters
        ----------
        seed : int
            The loader's seed, from 0 to 2**64 - 1.
        epoch : int
            The loader's epoch, from 0.
        """
        return None


class SequenceSampler(Sampler):
    """A sampler of the indices 0, 1, 2, … of a dataset, in order.

    Parameters
    ----------
    data_source : sized
        The dataset.

    Examples
    --------
    >>> list(SequenceSampler("abc"))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        super().__init__(check_sized("data_source", data_source))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def order(self, seed: int, epoch: int) -> Order | None:  # noqa: ARG002
        """Return the indices in order, or None if a subclass overrides `__iter__`."""
        return InOrder(len(self)) if type(self).__iter__ is SequenceSampler.__iter__ else None


class RandomSampler(Sampler):
    """A sampler of random indices of a dataset.

    Parameters
    ----------
    data_source : sized
        The dataset.
    replacement : bool
        Whether an index may be drawn again before all others have been drawn.
    num_samples : int, optional
        Number of indices per epoch; without replacement, at most the dataset's length. None means the
        dataset's length.
    generator : iterator, numpy.random.Generator or numpy.random.RandomState, optional
        An iterator of indices, which each epoch continues to read until it ends, or the NumPy generator to
        draw with.

    Raises
    ------
    TypeError
        The data source has no length, `replacement` is not a boolean, or the generator has another type.
    ValueError
        `num_samples` is not an integer of 1 or more, or is larger than the dataset without replacement.

    Examples
    --------
    >>> sorted(RandomSampler("abc"))
    [0, 1, 2]
    >>> list(RandomSampler("abc", generator=iter([2, 0, 1])))
    [2, 0, 1]
    """

    data_source: Sized

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Iterator[int] | np.random.Generator | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(check_sized("data_source", data_source))
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be True or False, got {replacement!r}")
        if not isinstance(generator, Iterator | np.random.Generator | np.random.RandomState | None):
            raise TypeError(
                "generator must be an iterator of indices, a numpy.random.Generator or a "
                f"numpy.random.RandomState, got {type(generator).__name__}"
            )
        self.replacement = replacement
        self.generator = generator
        self._num_samples = None if num_samples is None else check_count("num_samples", num_samples)
        count = len(data_source)
        if not replacement and self.num_samples > count:
            raise ValueError(
                f"num_samples must be at most {count}, the length of the data source, got {num_samples}; "
                "pass replacement=True to draw samples repeatedly"
            )
        if replacement and self.num_samples and not count:
            raise ValueError(f"num_samples={num_samples}, but the data source is empty")

    @property
    def num_samples(self) -> int:
        """Number of indices per epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        count = len(self.data_source)
        generator = self.generator
        if generator is None:
            return iterate(self._draw(draw_seed(), 0))
        if isinstance(generator, Iterator):
            return itertools.islice(generator, self.num_samples)
        if not self.replacement:
            return iter(generator.permutation(count)[: self.num_samples].tolist())
        draw = generator.integers if isinstance(generator, np.random.Generator) else generator.randint
        return iter(draw(count, size=self.num_samples).tolist())

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return the indices of an epoch, or None if a generator or a subclass's `__iter__` yields them."""
        if self.generator is not None or type(self).__iter__ is not RandomSampler.__iter__:
            return None
        return self._draw(seed, epoch)

    def _draw(self, seed: int, epoch: int) -> Order:
        count = len(self.data_source)
        if self.replacement:
            return Drawn(count, self.num_samples, seed, epoch)
        return Shuffled(count, seed, epoch, self._num_samples)


class WeightedRandomSampler(Sampler):
    """A sampler of random indices, each drawn with a probability proportional to its weight.

    Parameters
    ----------
    weights : array-like
        One weight per sample of the dataset, 0 or more; they need not sum to 1.
    num_samples : int
        Number of indices per epoch, 1 or more.
    replacement : bool
        Whether an index may be drawn repeatedly. If not, at least `num_samples` weights must be above 0.

    Raises
    ------
    TypeError
        `replacement` is not a boolean.
    ValueError
        The weights are not finite numbers of 0 or more, too few are above 0, or `num_samples` is not an
        integer of 1 or more.

    Examples
    --------
    >>> list(WeightedRandomSampler([0, 1, 0], num_samples=3))
    [1, 1, 1]
    """

    def __init__(self, weights: ArrayLike, num_samples: int, replacement: bool = True) -> None:
        super().__init__()
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be True or False, got {replacement!r}")
        self.num_samples = check_count("num_samples", num_samples)
        self.replacement = replacement
        self.weights: NDArray[np.float64] = as_weights(weights, self.num_samples, replacement)

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        return iterate(self._draw(draw_seed(), 0))

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return the indices of an epoch, or None if a subclass overrides `__iter__`."""
        return self._draw(seed, epoch) if type(self).__iter__ is WeightedRandomSampler.__iter__ else None

    def _draw(self, seed: int, epoch: int) -> Order:
        return Weighted(self.weights, self.num_samples, self.replacement, seed, epoch)


class SubsetRandomSampler(Sampler):
    """A sampler of the given indices in random order.

    Parameters
    ----------
    indices : sequence of int
        One index or more.

    Raises
    ------
    TypeError
        `indices` is not a list of integers.
    ValueError
        `indices` is empty.

    Examples
    --------
    >>> sorted(SubsetRandomSampler([7, 3, 5]))
    [3, 5, 7]
    """

    def __init__(self, indices: Sequence[int] | NDArray[np.integer]) -> None:
        super().__init__()
        self.indices = as_indices("indices", indices)
        if not self.indices.size:
            raise ValueError("indices must contain at least one index, got none")

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iterate(self._draw(draw_seed(), 0))

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return the indices of an epoch, or None if a subclass overrides `__iter__`."""
        return self._draw(seed, epoch) if type(self).__iter__ is SubsetRandomSampler.__iter__ else None

    def _draw(self, seed: int, epoch: int) -> Order:
        return Mapped(Shuffled(len(self.indices), seed, epoch), self.indices)


def check_sized(name: str, value: object) -> Sized:
    """Return `value`, or raise `TypeError` if it has no length.

    >>> check_sized("data_source", "abc")
    'abc'
    """
    if not isinstance(value, Sized):
        raise TypeError(f"{name} must have a length, got {type(value).__name__}, which defines no __len__")
    len(value)  # an iterable dataset raises its own explanation
    return value


def draw_seed() -> int:
    """Return a seed from NumPy's global random state."""
    return int(np.random.randint(2**63 - 1, dtype=np.int64))
