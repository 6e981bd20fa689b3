"""The part of a reader's loader that loops, and that programs drive by hand with start, next and reset."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Self

from gpuloader.base.errors import EOFException, Misuse
from gpuloader.pipeline.epoch import Epoch


class Driven:
    """Looping over a loader, or driving it by hand; the loader that inherits this begins the epochs.

    One thread drives a loader by hand. Loops are independent of that and of each other.

    Parameters
    ----------
    iterable : bool
        Whether the loader was made to be looped over, not to be started and reset.
    has_feeds : bool
        Whether the loader was made with a feed list. Without one, it can always be looped over.
    """

    def __init__(self, *, iterable: bool, has_feeds: bool) -> None:
        self._made_iterable = iterable
        self._has_feeds = has_feeds
        self._started: Epoch | None = None
        self._ended = False
        self._looped: weakref.ref[Epoch] | None = None
        self._taken: Epoch | None = None

    def _begin(self) -> Epoch:
        raise NotImplementedError

    @property
    def iterable(self) -> bool:
        """Whether ``for`` may loop over the loader; if not, `start` and `reset` it."""
        return self._made_iterable or not self._has_feeds

    def __call__(self) -> Self:
        """Return the loader itself; a loop over it, or `next`, then begins a new epoch."""
        self._forget()
        return self

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch and return its iterator.

        Raises
        ------
        LoaderError
            The loader has no source, or was made with a feed_list and ``iterable=False``.
        """
        if not self.iterable:
            raise Misuse(
                "this loader was made with iterable=False: call start(), take batches with next(loader) "
                "until EOFException, then reset(); or make it with iterable=True to loop over it"
            )
        if not self._made_iterable:
            warnings.warn(
                "this loader was made with iterable=False, but is looped over; make it with iterable=True",
                stacklevel=2,
            )
        self._forget()
        epoch = self._begin()
        self._looped = weakref.ref(epoch)  # weak: leaving the loop ends the epoch
        return epoch

    def _forget(self) -> None:
        """End the epoch that `next` began, if there is one."""
        taken, self._taken, self._looped = self._taken, None, None
        if taken is not None:
            taken.close()

    def start(self) -> None:
        """Begin an epoch of a loader made with ``iterable=False``.

        After the end of an epoch, call `reset` first. Without it, `start` warns and the epoch stays over, as
        in Paddle.

        Raises
        ------
        LoaderError
            The loader is iterable, has no source, or an epoch is running.
        """
        self._require_not_iterable("start()")
        if self._started is None:
            self._started = self._begin()
        elif self._ended:
            warnings.warn(
                "start() without reset(): the epoch that has ended stays over; call reset(), then start()",
                stacklevel=2,
            )
        else:
            raise Misuse("start() was called twice; call reset() between epochs")

    def reset(self) -> None:
        """End the epoch that `start` began, whether or not it has reached its end.

        Raises
        ------
        LoaderError
            The loader is iterable.
        """
        self._require_not_iterable("reset()")
        epoch, self._started, self._ended = self._started, None, False
        if epoch is not None:
            epoch.close()

    def next(self) -> Any:
        """Return the next step of the epoch that `start` began.

        An iterable loader returns the next step of the latest epoch: the one of the latest ``iter(loader)``,
        or else one that the first `next` begins. ``next(loader())`` is the first step of a new epoch.

        Raises
        ------
        EOFException
            The epoch is over; call `reset`.
        StopIteration
            The epoch of an iterable loader is over.
        LoaderError
            `start` was not called.

        Examples
        --------
        >>> from gpuloader import DataLoader, EOFException
        >>> loader = DataLoader.from_generator(capacity=2, iterable=False)
        >>> _ = loader.set_sample_generator(lambda: [(1,), (2,)], batch_size=2, places="cpu")
        >>> loader.start()
        >>> next(loader)
        [array([1, 2])]
        >>> try:
        ...     next(loader)
        ... except EOFException:
        ...     loader.reset()
        """
        if self._made_iterable:
            return self._next_of_latest()
        if self._started is None:
            raise Misuse("no epoch has begun: call start() first")
        try:
            return self._started.__next__()
        except StopIteration:
            self._ended = True
            raise EOFException("the epoch has no further batch; call reset(), then start()") from None

    def __next__(self) -> Any:
        return self.next()

    def _next_of_latest(self) -> Any:
        latest = self._taken if self._looped is None else self._looped()
        if latest is None:
            latest = self._taken = self._begin()
            self._looped = None
        return latest.__next__()

    def _require_not_iterable(self, call: str) -> None:
        if self._made_iterable:
            raise Misuse(f"{call} is for loaders made with iterable=False; loop over this one instead")
