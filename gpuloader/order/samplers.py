"""Asking the user's samplers for their indices, and skipping what was delivered before."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.checks import check_count
from gpuloader.errors import BadType, BadTypeOrValue, BadValue, LoaderError, QueueClosed, describe_error
from gpuloader.order.order import (
    Drawn,
    InOrder,
    Mapped,
    Order,
    Repeated,
    Shuffled,
    Weighted,
    as_indices,
    as_weights,
    iterate,
)
from gpuloader.order.randomness import GeneratorLike, draw_seed, is_torch_generator
from gpuloader.system.iterators import Steady

# Samplers, which determine the samples of an epoch and their order, as in Paddle's ``paddle.io``.
#
# A loader asks a sampler for its `order`, which depends only on seed and epoch. The seed is the loader's, or
# one drawn from the sampler's own generator when the sampler is made. Outside a loader, each iteration of a
# random sampler draws a new seed from that generator, or from NumPy's global random state.

I = TypeVar("I", covariant=True)  # noqa: E741 - a sampler's index


class Sampler(Generic[I]):
    """Base class of samplers; a subclass yields the indices of an epoch from `__iter__`.

    ``Sampler[int]`` annotates one that yields integers.

    Parameters
    ----------
    data_source : sized, optional
        The dataset; its length is the sampler's length, unless a subclass overrides `__len__`.

    Examples
    --------
    >>> class Backwards(Sampler[int]):
    ...     def __iter__(self):
    ...         return iter(range(len(self) - 1, -1, -1))
    >>> list(Backwards("abc"))
    [2, 1, 0]
    """

    data_source: Sized | None = None

    def __init__(self, data_source: Sized | None = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[I]:
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


class SequenceSampler(Sampler[int]):
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


class _Seeded(Sampler[int]):
    """A sampler whose order follows from a seed: the loader's, or one drawn from its own generator."""

    generator: GeneratorLike = None
    _seed: int | None = None

    def _seed_from(self, generator: GeneratorLike) -> None:
        self.generator = generator
        self._seed = None if generator is None else draw_seed(generator)

    def __iter__(self) -> Iterator[int]:
        yield from iterate(self._draw(self._new_seed(), 0))

    def _new_seed(self) -> int:
        """Draw the seed of an iteration outside a loader."""
        return draw_seed(self.generator)

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return the indices of an epoch, or None if a subclass overrides `__iter__`."""
        if type(self).__iter__ is not _Seeded.__iter__:
            return None
        return self._draw(seed if self._seed is None else self._seed, epoch)

    def _draw(self, seed: int, epoch: int) -> Order:
        raise NotImplementedError


class RandomSampler(_Seeded):
    """A sampler of random indices of a dataset.

    Parameters
    ----------
    data_source : sized
        The dataset.
    replacement : bool
        Whether an index may be drawn again before all others have been drawn.
    num_samples : int, optional
        Number of indices per epoch; None means the dataset's length. Without replacement, a number beyond the
        dataset's length draws one permutation of the dataset after another.
    generator : torch.Generator, iterator, numpy.random.Generator or numpy.random.RandomState, optional
        A ``torch.Generator`` gives the sampler its seed, drawn once when the sampler is made, in place of the
        loader's. An iterator of indices is read on by each epoch until it ends. A NumPy generator draws the
        indices of each epoch itself.

    Raises
    ------
    TypeError
        The data source has no length, `replacement` is not a boolean, or the generator has another type.
    ValueError
        `num_samples` is not an integer of 1 or more, or the dataset is empty, as in PyTorch and Paddle.

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
        generator: Iterator[int] | GeneratorLike = None,
    ) -> None:
        super().__init__(check_sized("data_source", data_source))
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be True or False, got {replacement!r}")
        if is_torch_generator(generator):
            self._seed_from(generator)
        elif isinstance(generator, Iterator | np.random.Generator | np.random.RandomState | None):
            self.generator = generator
        else:
            raise TypeError(
                "generator must be a torch.Generator, an iterator of indices, a numpy.random.Generator or a "
                f"numpy.random.RandomState, got {type(generator).__name__}"
            )
        self.replacement = replacement
        self._num_samples = None if num_samples is None else check_count("num_samples", num_samples)
        if not len(data_source):
            raise ValueError(
                f"num_samples={self.num_samples}, but the data source is empty: there is nothing to shuffle; "
                "check what fills the dataset"
            )

    @property
    def num_samples(self) -> int:
        """Number of indices per epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        count = len(self.data_source)
        generator = self.generator
        if generator is None or self._seed is not None:
            return super().__iter__()
        if isinstance(generator, Iterator):
            return itertools.islice(generator, self.num_samples)
        if not self.replacement:
            turns = range(0, self.num_samples, max(count, 1))
            drawn = itertools.chain.from_iterable(generator.permutation(count).tolist() for _ in turns)
            return itertools.islice(drawn, self.num_samples)
        draw = generator.integers if isinstance(generator, np.random.Generator) else generator.randint
        return iter(draw(count, size=self.num_samples).tolist())

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return the indices of an epoch, or None if the generator or a subclass's `__iter__` yields them."""
        drawn = self.generator is not None and self._seed is None
        if drawn or type(self).__iter__ is not RandomSampler.__iter__:
            return None
        return self._draw(seed if self._seed is None else self._seed, epoch)

    def _draw(self, seed: int, epoch: int) -> Order:
        count, draws = len(self.data_source), self.num_samples
        if self.replacement:
            return Drawn(count, draws, seed, epoch)
        return Shuffled(count, seed, epoch, draws) if draws <= count else Repeated(count, draws, seed, epoch)


class WeightedRandomSampler(_Seeded):
    """A sampler of random indices, each drawn with a probability proportional to its weight.

    Parameters
    ----------
    weights : array-like
        One weight per sample of the dataset, 0 or more; they need not sum to 1.
    num_samples : int
        Number of indices per epoch, 1 or more.
    replacement : bool
        Whether an index may be drawn repeatedly. If not, at least `num_samples` weights must be above 0.
    generator : torch.Generator, numpy.random.Generator or numpy.random.RandomState, optional
        Gives the sampler its seed, drawn once when the sampler is made. None uses the loader's seed.

    Raises
    ------
    TypeError
        `replacement` is not a boolean, or the generator has another type.
    ValueError
        The weights are not finite numbers of 0 or more, too few are above 0, or `num_samples` is not an
        integer of 1 or more.

    Examples
    --------
    >>> list(WeightedRandomSampler([0, 1, 0], num_samples=3))
    [1, 1, 1]
    """

    def __init__(
        self,
        weights: ArrayLike,
        num_samples: int,
        replacement: bool = True,
        generator: GeneratorLike = None,
    ) -> None:
        super().__init__()
        if not isinstance(replacement, bool):
            raise BadTypeOrValue(f"replacement must be True or False, got {replacement!r}")
        self.num_samples = check_count("num_samples", num_samples)
        self.replacement = replacement
        self.weights: NDArray[np.float64] = as_weights(weights, self.num_samples, replacement)
        self._seed_from(generator)

    def __len__(self) -> int:
        return self.num_samples

    def _draw(self, seed: int, epoch: int) -> Order:
        return Weighted(self.weights, self.num_samples, self.replacement, seed, epoch)


class SubsetRandomSampler(_Seeded):
    """A sampler of the given indices in random order.

    Parameters
    ----------
    indices : sequence of int
        The indices; there may be none.
    generator : torch.Generator, numpy.random.Generator or numpy.random.RandomState, optional
        Gives the sampler its seed, drawn once when the sampler is made. None uses the loader's seed.

    Raises
    ------
    TypeError
        `indices` is not a list of integers, or the generator has another type.

    Examples
    --------
    >>> sorted(SubsetRandomSampler([7, 3, 5]))
    [3, 5, 7]
    """

    def __init__(self, indices: Sequence[int] | NDArray[np.integer], generator: GeneratorLike = None) -> None:
        super().__init__()
        self.indices = as_indices("indices", indices)
        self._seed_from(generator)

    def __len__(self) -> int:
        return len(self.indices)

    def _draw(self, seed: int, epoch: int) -> Order:
        return Mapped(Shuffled(len(self.indices), seed, epoch), self.indices)


def make_sampler(dataset: Sized, shuffle: bool) -> Sampler[int]:
    """Return the sampler that a loader makes of a dataset.

    >>> list(make_sampler("abc", False))
    [0, 1, 2]
    """
    return RandomSampler(dataset) if shuffle else SequenceSampler(dataset)


def check_sized(name: str, value: object) -> Sized:
    """Return `value`, or raise `TypeError` if it has no length.

    >>> check_sized("data_source", "abc")
    'abc'
    """
    if not isinstance(value, Sized):
        raise BadType(f"{name} must have a length, got {type(value).__name__}, which defines no __len__")
    len(value)  # an iterable dataset raises its own explanation
    return value


T = TypeVar("T")


def walk(sampler: Iterable[T]) -> Iterator[T]:
    """Yield what a sampler yields.

    Raises
    ------
    TypeError
        The sampler's ``__iter__`` returns no iterator.
    LoaderError
        The sampler raised `QueueClosed`, which would end the epoch without an error.

    >>> list(walk([3, 1]))
    [3, 1]
    """
    try:
        yield from open_sampler(sampler)
    except QueueClosed as error:
        raise LoaderError(f"the sampler or batch sampler raised {describe_error(error)}") from error


def open_sampler(sampler: Iterable[T]) -> Iterator[T]:
    """Return a sampler's iterator, which does not start over; raise `TypeError` if it is no iterator.

    >>> next(open_sampler([3, 1]))
    3
    """
    try:
        return Steady.of(iter(sampler))
    except TypeError as error:
        if "non-iterator" not in str(error):
            raise
        kind = type(sampler).__name__
        raise BadType(
            f"{kind}.__iter__ of the sampler or batch sampler must return an iterator ({error}); return "
            "iter(...) of a list, or write it as a generator"
        ) from error


def skip(items: Iterator[object], count: int, size: int, what: str) -> None:
    """Drop items that were delivered before a loader's state, in batches of `size`.

    Raises
    ------
    ValueError
        There are fewer items than that, even if the last batch was incomplete.

    >>> skip(iter(range(5)), 6, 2, "the reader")
    >>> skip(iter(range(4)), 6, 2, "the reader")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuloader.errors.BadValue: the reader ended after 4 items, but the state was taken after 6 of ...
    """
    last = deque(enumerate(itertools.islice(items, count), 1), maxlen=1)  # counts as fast as C
    found = last[0][0] if last else 0
    if found <= count - size:
        raise BadValue(
            f"{what} ended after {found} items, but the state was taken after {count} of them: it comes from "
            "another dataset, reader or sampler"
        )
