"""Random numbers for a sample: a function of the loader's seed, the epoch and the sample's index alone.

So augmentation produces the same images whichever worker fetches a sample, in whatever order, and wherever an
interrupted epoch resumes.
"""

from __future__ import annotations

import threading
import zlib
from typing import Any

import numpy as np

from gpuloader.base.errors import LoaderError

_MASK = (1 << 64) - 1


class Draw:
    """The sample that a thread is fetching.

    Attributes
    ----------
    seed : int or None
        The loader's seed; None if no sample is being fetched.
    epoch : int
        The loader's epoch.
    index : object
        The sample's dataset index, or the number of the worker that reads an iterable dataset. None while no
        single sample is being fetched.
    generator : numpy.random.Generator or None
        The sample's generator, created on first use.
    """

    __slots__ = ("epoch", "generator", "index", "seed")

    def __init__(self, seed: int | None = None, epoch: int = 0) -> None:
        self.seed = seed
        self.epoch = epoch
        self.index: Any = None
        self.generator: np.random.Generator | None = None


class _Present(threading.local):
    def __init__(self) -> None:
        self.draw = Draw()


_present = _Present()


def current_draw() -> Draw:
    """Return the calling thread's draw; fetchers set its `index` and `generator` before each sample."""
    return _present.draw


def exchange_draw(draw: Draw) -> Draw:
    """Make `draw` the calling thread's draw and return the previous one, for restoring it later."""
    before, _present.draw = _present.draw, draw
    return before


def begin_draws(seed: int, epoch: int) -> None:
    """Start a new draw with this seed and epoch in the calling thread."""
    _present.draw = Draw(seed, epoch)


def sample_rng() -> np.random.Generator:
    """Return the random generator of the sample being fetched, for use in `Dataset.__getitem__`.

    Its key is the loader's seed, the epoch and the sample's index, so a sample is the same with any number of
    workers. Items of an `IterableDataset` have no index, so there the worker's number is the key.

    Returns
    -------
    numpy.random.Generator
        The same generator for every call during one sample.

    Raises
    ------
    LoaderError
        The calling thread is not fetching a sample for a loader, or it is fetching several at once (in
        ``__getitems__`` or ``collate_fn``).

    Examples
    --------
    >>> import gpuloader
    >>> class Noisy(gpuloader.Dataset):
    ...     def __getitem__(self, index):
    ...         return index + gpuloader.sample_rng().random(2)
    ...     def __len__(self):
    ...         return 4
    >>> def numbers(**options):
    ...     loader = gpuloader.DataLoader(Noisy(), places="cpu", batch_size=2, seed=7, **options)
    ...     return [batch.tolist() for batch in loader]
    >>> numbers() == numbers(num_workers=2, worker_type="thread")
    True
    """
    draw = _present.draw
    if draw.seed is None:
        raise LoaderError(
            "no sample is being fetched in this thread; call sample_rng() in the dataset's __getitem__ or "
            "__iter__, while the loader runs it"
        )
    if draw.index is None:
        raise LoaderError(
            "no single sample is being fetched: __getitems__ and collate_fn handle several at once; call "
            "sample_rng() in __getitem__"
        )
    if draw.generator is None:
        # Arrays, because NumPy would turn a list of 64-bit numbers into floats.
        counter = np.array([0, 0, as_number(draw.index), draw.epoch & _MASK], np.uint64)
        key = np.array([draw.seed & _MASK, 1], np.uint64)
        draw.generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    return draw.generator


def mixed_seed(*parts: int) -> int:
    """Return a 32-bit seed that depends on all given numbers, for generators that accept no larger seed.

    >>> mixed_seed(7, 0, 1) == mixed_seed(7, 0, 1) != mixed_seed(7, 1, 0)
    True
    """
    return zlib.crc32(",".join(map(str, parts)).encode())


def as_number(index: object) -> int:
    """Return a 64-bit number for an index: an integer itself, or a hash that is the same in all processes.

    >>> as_number(5), as_number("a.jpg") == as_number("a.jpg")
    (5, True)
    """
    if isinstance(index, int | np.integer):
        return int(index) & _MASK
    text = repr(index).encode()
    return zlib.crc32(text) << 32 | zlib.adler32(text)
