"""`TokenWindows`: windows over a long array of tokens, for training language models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from gpuloader.checks import check_count, check_flags
from gpuloader.fields.spec import is_stageable
from gpuloader.foreign import as_array, describe_dtype, torch_name
from gpuloader.order.order import IndexArray, as_indices
from gpuloader.sources.array_rows import ArrayRows, locate
from gpuloader.sources.dataset import Dataset


class TokenWindows(Dataset[Any]):
    """Windows of equal length over an array of tokens; a sample is a window, or a pair of inputs and targets.

    The loader copies the windows of a batch straight into its slot and runs no Python code per window. The
    array may be a memory-mapped file larger than the memory. A slice, or a list, array or tensor of indices
    or booleans, selects several windows at once, as one array.

    Parameters
    ----------
    tokens : array-like
        One dimension of numbers, such as ``np.memmap("train.bin", np.uint16, "r")``. It is not copied.
    length : int
        Tokens per window.
    targets : bool
        Whether a sample is a pair of arrays of `length` tokens, for a model that predicts the next token: the
        inputs, and the targets, which begin and end one token later.
    stride : int or None
        Tokens from the start of one window to the start of the next. None means `length`, so that windows do
        not overlap. With 1, a window starts at every token; draw them at random with
        ``RandomSampler(windows, replacement=True, num_samples=...)``.
    documents : array-like or None
        The position of each document's first token, in ascending order; the first one may be left out. A
        window then lies within one document, and documents shorter than a window have none. None lets windows
        cross documents.

    Raises
    ------
    TypeError
        The tokens are not numbers, or the documents are not whole numbers.
    ValueError
        A number is out of range, the documents are not in ascending order, or no window fits.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> windows = TokenWindows(np.arange(10, dtype=np.uint16), 4, stride=3)
    >>> for batch in DataLoader(windows, places="cpu", batch_size=2):
    ...     print(batch.tolist())
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    [[6, 7, 8, 9]]
    >>> inputs, targets = TokenWindows(range(10), 4, targets=True)[1]
    >>> inputs.tolist(), targets.tolist()
    ([4, 5, 6, 7], [5, 6, 7, 8])
    >>> [window.tolist() for window in TokenWindows(range(10), 3, documents=[0, 4, 6])]
    [[0, 1, 2], [6, 7, 8]]
    """

    _targets = False  # for pickles that were made before windows had targets

    def __init__(
        self,
        tokens: ArrayLike,
        length: int,
        *,
        stride: int | None = None,
        documents: ArrayLike | None = None,
        targets: bool = False,
    ) -> None:
        check_flags(targets=targets)
        self.tokens = as_tokens(tokens)
        self.length = check_count("length", length)
        self.stride = self.length if stride is None else check_count("stride", stride)
        self._targets, self._within = bool(targets), documents is not None
        bounds = find_bounds([] if documents is None else documents, len(self.tokens))
        sizes = np.diff(bounds)
        counts = np.maximum((sizes - self._span) // self.stride + 1, 0)
        if not counts.any():
            what = "the array has" if documents is None else "the longest document has"
            raise ValueError(f"no window of {self._span} tokens fits: {what} {sizes.max(initial=0)}")
        self._starts = WindowStarts(bounds[:-1][counts > 0], counts[counts > 0], self.stride)

    @property
    def _span(self) -> int:
        return self.length + self._targets  # the last target is one token after the last input

    def __getitem__(self, index: Any) -> Any:
        rows = locate(self, index)
        if isinstance(rows, int):
            start = int(self._starts[np.array([rows])][0])
            windows = self.tokens[start : start + self._span]
        else:
            windows = sliding_window_view(self.tokens, self._span)[self._starts[rows]]
        return (windows[..., :-1], windows[..., 1:]) if self._targets else windows

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        count = len(self._starts.first)
        and_targets = " and targets" if self._targets else ""
        within = f" within {count:,} documents" if self._within else ""
        return (
            f"<{type(self).__name__}: {len(self):,} windows of {self.length:,} tokens{and_targets}, at a "
            f"stride of {self.stride:,}{within}; {len(self.tokens):,} tokens of {self.tokens.dtype}>"
        )

    def _array_rows(self) -> ArrayRows:
        windows, starts = sliding_window_view(self.tokens, self._span), None
        # Within one document, the windows are a plain slice, and rows need no lookup.
        if len(self._starts.first) == 1:
            start = int(self._starts.first[0])
            windows = windows[start : start + len(self) * self.stride : self.stride]
        else:
            starts = self._starts
        if self._targets:
            return ArrayRows((windows[:, :-1], windows[:, 1:]), starts)
        return ArrayRows((windows,), starts, bare=True)


def as_tokens(tokens: ArrayLike) -> NDArray[Any]:
    """Return tokens as an array of one dimension, without a copy where possible, or raise `TypeError`."""
    # A view as the base class, because every operation on a memmap takes microseconds longer.
    array: NDArray[Any] = np.asarray(as_array(tokens))
    if array.ndim != 1 or not is_stageable(array.dtype) or torch_name(array.dtype) is not None:
        raise TypeError(
            f"tokens must be one dimension of numbers, got shape {array.shape} of "
            f"{describe_dtype(array.dtype)}; join texts and pass documents; open a file with np.memmap"
        )
    return array


def find_bounds(documents: ArrayLike, count: int) -> IndexArray:
    """Return where documents begin among `count` tokens, and the end.

    Raises `ValueError` if they do not ascend.

    >>> find_bounds([0, 4], 9)
    array([0, 0, 4, 9])
    """
    # A document at 0 that is listed begins twice, and the first one is empty.
    begins = as_indices("documents", documents)
    bounds = np.concatenate([[0], begins, [count]])
    if (np.diff(bounds) < 0).any():
        expected = f"documents must be ascending positions from 0 to {count}, the number of tokens"
        raise ValueError(f"{expected}, got {begins[:8]} …")
    return bounds


class WindowStarts:
    """The first token of every window; `first` and `counts` have an entry for each document with a window.

    >>> starts = WindowStarts(np.array([0, 100]), np.array([2, 3]), stride=10)
    >>> len(starts), starts[1:4]
    (5, array([ 10, 100, 110]))
    """

    # Computed on request: with a stride of 1, a table would take eight bytes per token of the corpus.

    def __init__(self, first: IndexArray, counts: IndexArray, stride: int) -> None:
        self.first = first
        self._ends = np.cumsum(counts)
        self._stride = stride
        self._before = self._ends - counts

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, windows: slice | IndexArray) -> IndexArray:
        numbers = np.arange(*windows.indices(len(self))) if isinstance(windows, slice) else windows
        document = np.searchsorted(self._ends, numbers, side="right")
        starts: IndexArray = self.first[document] + (numbers - self._before[document]) * self._stride
        return starts
