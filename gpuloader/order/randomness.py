"""Everything random: permutations of an order, and the random numbers of one sample.

Both are functions of the loader's seed and the epoch, and of a position or a sample's index. So augmentation
produces the same images whichever worker fetches a sample, in whatever order, and wherever an interrupted
epoch resumes. Orders come from integer arithmetic, not from `numpy.random`, whose shuffles may change between
releases. Checkpoints rely on an order, so it must stay the same on every machine and in every release.
"""

from __future__ import annotations

import math
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import LoaderError
from gpuloader.foreign import is_torch_generator

if TYPE_CHECKING:
    import torch

# The arithmetic of orders: hashes of positions, and a permutation computed only at requested positions.

Words = NDArray[np.uint64]
"""Positions and hashes: 64-bit integers that wrap around."""

_ALL = 2**64 - 1
# The constants of splitmix64 (Steele, Lea and Flood 2014, with Stafford's mixer 13).
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_0, _30, _27, _31, _MIX_1, _MIX_2 = (np.uint64(word) for word in (0, 30, 27, 31, _FIRST, _SECOND))
_BLOCK = 4096  # numbers to hash at a time
SORTED_AT_MOST = 2**18
"""Permutations up to this length are sorted once, in a few ms and 2 MiB; longer ones computed per slice."""

SORTED, PERMUTED, DRAWN, WEIGHTED, REPEATED, BUCKETED, MIXED, WINDOWED = range(8)
"""Hashed together with seed and epoch, so that no two kinds of orders use the same random numbers."""

_ROUNDS = 5  # each for both halves; with ideal hashes two would suffice (Luby and Rackoff 1988)


def derive_key(*words: int) -> int:
    """Return a 64-bit hash of a sequence of 64-bit integers.

    >>> hex(derive_key(0, 0))
    '0xa706dd2f4d197e6f'
    """
    key = 0
    for word in words:
        key = ((key ^ word) + _STEP) & _ALL
        key = ((key ^ key >> 30) * _FIRST) & _ALL
        key = ((key ^ key >> 27) * _SECOND) & _ALL
        key ^= key >> 31
    return key


def hash_positions(positions: Words, key: int) -> Words:
    """Return a 64-bit hash for every position: entries of the splitmix64 sequence of `key`.

    >>> [hex(word) for word in hash_positions(np.array([0, 1], np.uint64), 1234567)]
    ['0x599ed017fb08fc85', '0x2c73f08458540fa5']
    """
    words = positions * np.uint64(_STEP)
    _mix(words, np.uint64((key + _STEP) & _ALL))
    return words


def hash_for_keys(positions: Words, keys: Sequence[int]) -> Words:
    """Return the hashes of every position for each of several keys, shape (positions, keys)."""
    starts = np.array([(key + _STEP) & _ALL for key in keys], np.uint64)
    words: Words = np.add.outer(positions * np.uint64(_STEP), starts)
    _mix(words.reshape(-1), _0)
    return words


def _mix(words: Words, start: np.uint64) -> None:
    """Replace words, plus a start, by their hashes."""
    shifted = np.empty(min(_BLOCK, words.size), np.uint64)
    # Block by block, so that the eight passes run over data in the cache.
    for first in range(0, words.size, _BLOCK):
        block = words[first : first + _BLOCK]
        spare = shifted[: block.size]
        block += start
        block ^= np.right_shift(block, _30, out=spare)
        block *= _MIX_1
        block ^= np.right_shift(block, _27, out=spare)
        block *= _MIX_2
        block ^= np.right_shift(block, _31, out=spare)


def sort_hashes(count: int, key: int) -> Words:
    """Return a complete permutation of ``range(count)``: its numbers, sorted by their hashes.

    >>> sorted(sort_hashes(7, key=3).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    numbers = np.arange(count, dtype=np.uint64)
    hashes = hash_positions(numbers, key)
    # With each number in the low bits of its own hash, a plain sort suffices: no ties, no slower argsort.
    low = np.uint64(2 ** count.bit_length() - 1)
    hashes &= ~low
    hashes |= numbers
    hashes.sort()
    hashes &= low
    return hashes


def permute(positions: Words, count: int, key: int) -> Words:
    """Return the entries at `positions` of a permutation of ``range(count)``, without storing a permutation.

    Positions are below `count`, which is from 1 to 2**62. The key, below 2**64, selects the permutation.

    >>> sorted(permute(np.arange(7, dtype=np.uint64), 7, key=3).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    # A Feistel network over pairs (left, right): each half in turn is shifted by a hash of the other, which
    # is invertible. The pairs are the cells of the smallest near-square grid with at least `count` cells.
    # Near-square, so that both halves are at most 2**31 and their products stay within 64 bits.
    rows = math.isqrt(count - 1) + 1
    columns = -(-count // rows)
    image = _permute_cells(positions, rows, columns, key)
    # Positions that land beyond `count` go through the network again until they fall inside (Black and
    # Rogaway 2002). The grid has fewer than `rows` cells too many, so there are few of them.
    while (outside := np.flatnonzero(image >= np.uint64(count))).size:
        image[outside] = _permute_cells(image[outside], rows, columns, key)
    return image


def _permute_cells(cells: Words, rows: int, columns: int, key: int) -> Words:
    left, right = np.divmod(cells, np.uint64(columns))
    # Each round has its own key: the proof of Luby and Rackoff needs independent round functions.
    for turn in range(_ROUNDS):
        left = _shifted(left, right, rows, derive_key(key, 2 * turn))
        right = _shifted(right, left, columns, derive_key(key, 2 * turn + 1))
    left *= np.uint64(columns)
    left += right
    return left


def _shifted(half: Words, other: Words, size: int, key: int) -> Words:
    """Return ``(half + hash of other) mod size``."""
    shift = hash_positions(other, key)
    # The high half of the product is below `size`. `size` is at most 2**31, so nothing overflows.
    shift >>= np.uint64(32)
    shift *= np.uint64(size)
    shift >>= np.uint64(32)
    shift += half
    # If the sum is already below `size`, the difference wraps around to a huge number: the smaller is right.
    np.minimum(shift, shift - np.uint64(size), out=shift)
    return shift


# The random numbers of one sample.

_SPARES = 2  # a loop's variable still holds one generator when the loop asks for the next


class Draw:
    """The sample that a thread is fetching.

    `seed` is None if no sample is being fetched. `index` is the sample's dataset index, or the number of the
    worker that reads an iterable dataset; None while no single sample is being fetched. `generator` is None
    until the sample asks for it. `skips` asks an iterable dataset to leave out samples that raise.
    """

    __slots__ = ("_alone", "_counter", "_spares", "_state", "epoch", "generator", "index", "seed", "skips")

    def __init__(self, seed: int | None = None, epoch: int = 0) -> None:
        self.seed = seed
        self.epoch = epoch
        self.index: Any = None
        self.generator: np.random.Generator | None = None
        self.skips = False
        self._spares: list[np.random.Generator] = []
        self._alone = 0
        # Philox computes its numbers from a key and a counter, so a sample's stream begins at the sample's
        # index, without any state to carry: the same in any worker, in any order, and after a resume.
        self._counter = [0, 0, 0, epoch & _ALL]
        self._state = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": ((seed or 0) & _ALL, 1)},
            "buffer": (0, 0, 0, 0),
            "buffer_pos": 4,  # the whole buffer has been read
            "has_uint32": 0,
            "uinteger": 0,
        }

    def make_generator(self, index: object, purpose: int = 0) -> np.random.Generator:
        """Return a generator that starts at the first number of the sample at `index`.

        Each purpose has its own numbers, so that those for transforms do not depend on the dataset's draws.
        """
        # A generator that nobody refers to any more is reused, because creating one takes ten times as long
        # as setting its state. One that the user has kept is never touched.
        # A user may keep either a generator or its bit generator.
        for generator in self._spares:
            bits = generator.bit_generator
            if sys.getrefcount(generator) + sys.getrefcount(bits) == self._alone:
                break
        else:
            if len(self._spares) == _SPARES:
                self._spares.clear()
            generator = np.random.Generator(np.random.Philox(0))
            self._spares.append(generator)
            bits = generator.bit_generator
            # Releases of Python differ in what the call itself adds to the reference count.
            self._alone = sys.getrefcount(generator) + sys.getrefcount(bits)
        self._counter[1] = purpose
        self._counter[2] = index & _ALL if type(index) is int else as_number(index)
        bits.state = self._state
        return generator


class _PresentDraw(threading.local):
    def __init__(self) -> None:
        self.draw = Draw()


_present = _PresentDraw()


def current_draw() -> Draw:
    """Return the calling thread's draw; fetchers set its `index` and `generator` before each sample."""
    return _present.draw


def exchange_draw(draw: Draw) -> Draw:
    """Make `draw` the calling thread's draw and return the previous one, for restoring it later."""
    before, _present.draw = _present.draw, draw
    return before


def sample_rng() -> np.random.Generator:
    """Return the random generator of the sample being fetched, for use in `Dataset.__getitem__`.

    Its key is the loader's seed, the epoch and the sample's index, so a sample is the same with any number of
    workers. Items of an `IterableDataset` have no index, so there the worker's number is the key. Every call
    during one sample returns the same generator.

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
    draw = _fetching_draw("__getitem__ or __iter__")
    # Several samples together would share one generator, and their numbers would depend on the batch size.
    if draw.index is None:
        raise LoaderError(
            "no single sample is being fetched: __getitems__ and collate_fn handle several at once; call "
            "sample_rng() in __getitem__, or sample_rngs(indices) in __getitems__"
        )
    if draw.generator is None:
        draw.generator = draw.make_generator(draw.index)
    return draw.generator


def sample_rngs(indices: Iterable[object]) -> Iterator[np.random.Generator]:
    """Yield the random generator of each sample that ``__getitems__(indices)`` loads.

    The numbers are those that `sample_rng` draws in ``__getitem__`` for the same seed, epoch and index, so a
    dataset may load its samples in either way.

    Raises
    ------
    LoaderError
        The calling thread is not fetching samples for a loader.

    Examples
    --------
    >>> import gpuloader
    >>> class Noisy(gpuloader.Dataset):
    ...     def __getitem__(self, index):
    ...         return index + gpuloader.sample_rng().random()
    ...     def __len__(self):
    ...         return 4
    >>> class NoisyAtOnce(Noisy):
    ...     def __getitems__(self, indices):
    ...         rngs = gpuloader.sample_rngs(indices)
    ...         return [index + rng.random() for index, rng in zip(indices, rngs)]
    >>> def numbers(dataset):
    ...     loader = gpuloader.DataLoader(dataset, places="cpu", batch_size=4, seed=7)
    ...     return next(iter(loader)).tolist()
    >>> numbers(Noisy()) == numbers(NoisyAtOnce())
    True
    """
    draw = _fetching_draw("__getitems__", "sample_rngs")
    return (draw.make_generator(index) for index in indices)


def _fetching_draw(where: str, name: str = "sample_rng") -> Draw:
    draw = _present.draw
    if draw.seed is None:
        raise LoaderError(
            f"no sample is being fetched in this thread; call {name}() in the dataset's {where}, while the "
            "loader runs it"
        )
    return draw


def mixed_seed(*parts: int) -> int:
    """Return a 32-bit seed that depends on all given numbers, for generators that accept no larger seed."""
    return zlib.crc32(",".join(map(str, parts)).encode())


def as_number(index: object) -> int:
    """Return a 64-bit number for an index: an integer itself, or a hash that is the same in all processes.

    >>> as_number(5), as_number("a.jpg") == as_number("a.jpg")
    (5, True)
    """
    if isinstance(index, int | np.integer):
        return int(index) & _ALL
    # Not `hash`, which Python seeds differently in every process.
    text = repr(index).encode()
    return zlib.crc32(text) << 32 | zlib.adler32(text)


# Seeds from generators of random numbers: NumPy's, and PyTorch's without importing it.

GeneratorLike: TypeAlias = "np.random.Generator | np.random.RandomState | torch.Generator | None"
"""What a ``generator`` parameter accepts."""

_HIGHEST = 2**63 - 1


def draw_seed(generator: GeneratorLike = None) -> int:
    """Draw a seed from 0 to 2**63 - 1 from a generator, or from NumPy's global random state.

    >>> draw_seed(np.random.default_rng(5)) == draw_seed(np.random.default_rng(5))
    True
    """
    if is_torch_generator(generator):
        lib: Any = sys.modules["torch"]
        return int(lib.empty((), dtype=lib.int64, device=generator.device).random_(generator=generator))
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(_HIGHEST))
    # The global state advances, as it does for PyTorch's samplers, so that two samplers draw two seeds.
    if generator is None or isinstance(generator, np.random.RandomState):
        draw = np.random.randint if generator is None else generator.randint
        return int(draw(_HIGHEST, dtype=np.int64))
    raise TypeError(
        "generator must be a torch.Generator, a numpy.random.Generator or a numpy.random.RandomState, got "
        f"{type(generator).__name__}"
    )
