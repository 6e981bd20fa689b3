"""Random numbers for a sample: a function of the loader's seed, the epoch and the sample's index alone.

So augmentation gives the same pictures whichever worker, thread or process fetches a sample, in whatever
order, and wherever an interrupted epoch was resumed.
"""

from __future__ import annotations

import threading
import zlib
from typing import Any

import numpy as np

from gpuloader.base.errors import LoaderError

_MASK = (1 << 64) - 1


class Draw:
    """What a thread fetches now.

    Attributes
    ----------
    seed : int or None
        Of the loader; None where no sample is being fetched.
    epoch : int
        Of the loader.
    index : object
        Dataset index of the sample, or number of the worker that reads an iterable dataset. None: no one
        sample is being fetched.
    generator : numpy.random.Generator or None
        The sample's generator, made when it is first asked for.
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
    """Return the calling thread's; who fetches sets `index` and `generator` before each sample."""
    return _present.draw


def exchange_draw(draw: Draw) -> Draw:
    """Make `draw` the calling thread's and return the one before, to be put back."""
    before, _present.draw = _present.draw, draw
    return before


def begin_draws(seed: int, epoch: int) -> None:
    """Fetch for this seed and epoch from now on, in the calling thread."""
    _present.draw = Draw(seed, epoch)


def sample_rng() -> np.random.Generator:
    """Return the random generator of the sample being fetched; for use in `Dataset.__getitem__`.

    It is keyed by the loader's seed, the epoch and the sample's index, so the sample is the same with any
    number of workers. In an `IterableDataset`, whose items have no index, it is keyed by the worker instead.

    Returns
    -------
    numpy.random.Generator
        The same one however often it is asked for during one sample.

    Raises
    ------
    LoaderError
        The calling thread fetches no sample for a loader, or, in ``__getitems__`` and ``collate_fn``, no
        single one.

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
            "__iter__, as the loader runs it"
        )
    if draw.index is None:
        raise LoaderError(
            "no single sample is being fetched: __getitems__ and collate_fn have several at once; call "
            "sample_rng() in __getitem__"
        )
    if draw.generator is None:
        # As arrays: of a list with numbers of 64 bits NumPy would make floats.
        counter = np.array([0, 0, as_number(draw.index), draw.epoch & _MASK], np.uint64)
        key = np.array([draw.seed & _MASK, 1], np.uint64)
        draw.generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    return draw.generator


def mixed_seed(*parts: int) -> int:
    """Return 32 bits that depend on all the given numbers: a seed for what takes a small one.

    >>> mixed_seed(7, 0, 1) == mixed_seed(7, 0, 1) != mixed_seed(7, 1, 0)
    True
    """
    return zlib.crc32(",".join(map(str, parts)).encode())


def as_number(index: object) -> int:
    """Return 64 bits for an index: itself where it is an integer, else a hash that no process changes.

    >>> as_number(5), as_number("a.jpg") == as_number("a.jpg")
    (5, True)
    """
    if isinstance(index, int | np.integer):
        return int(index) & _MASK
    text = repr(index).encode()
    return zlib.crc32(text) << 32 | zlib.adler32(text)
