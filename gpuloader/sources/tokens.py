"""Samples for training language models.

`TokenWindows` are windows over a long array of tokens; `PackedSequences` are documents packed into rows of
equal length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from gpuloader.checks import check_count, check_flags
from gpuloader.errors import BadValue
from gpuloader.fields.spec import is_stageable
from gpuloader.foreign import as_array, describe_dtype, torch_name
from gpuloader.order.order import IndexArray, Shuffled, as_indices
from gpuloader.sources.array_rows import ArrayRows, locate
from gpuloader.sources.block import number_rows
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
        windows = sliding_window_view(self.tokens, self._span)
        starts: WindowStarts | None = self._starts
        # Within one document, the windows are a plain slice, and rows need no lookup.
        if len(self._starts.first) == 1:
            start = int(self._starts.first[0])
            windows, starts = windows[start : start + len(self) * self.stride : self.stride], None
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
        return np.asarray(self.first[document] + (numbers - self._before[document]) * self._stride)


# Documents packed into rows.

_IGNORED = -100  # the label that torch's cross_entropy leaves out


class PackedSequences(Dataset[dict[str, NDArray[Any]]]):
    """Documents of any length, packed into rows of equal length with little padding; a sample is one row.

    Each `window` of documents is packed by first fit: the longest document first, each into the first row
    with enough space. A document longer than a row is cut into pieces. Which documents share a row depends
    only on the arguments, so a loader shuffles, resumes and divides the rows like those of any other
    map-style dataset. A slice, or a list, array or tensor of indices or booleans, selects several rows.

    A row is a dict of arrays, which all have the same shape in every row:

    ================  ==========  ========================================================================
    ``tokens``        (length,)   the tokens of its documents one after another, then `padding`
    ``labels``        (length,)   int64: the token after each one in its document; -100 after a document's
                                  last and for padding, which ``torch.nn.functional.cross_entropy`` ignores
    ``position_ids``  (length,)   int32: the position of each token in its piece
    ``cu_seqlens``    (most,)     int32: where each piece begins, then `length`, repeated. What
                                  variable-length attention takes; padding is a piece, and repeated entries
                                  are pieces without tokens
    ================  ==========  ========================================================================

    Parameters
    ----------
    tokens : array-like
        One dimension of numbers, such as ``np.memmap("train.bin", np.uint16, "r")``. It is not copied.
    length : int
        Tokens per row.
    documents : array-like
        The position of each document's first token, in ascending order; the first one may be left out.
    longest : int or None
        The most tokens of a piece, such as the model's context; None means `length`.
    window : int
        Documents that are packed together. More of them fill rows better, and mix documents from further
        apart.
    padding : int
        The token that fills up rows.
    seed : int or None
        Shuffles the documents before they are packed; None leaves them in order.

    Attributes
    ----------
    fill : float
        The fraction of the rows' tokens that is not padding.

    Raises
    ------
    TypeError
        The tokens are not numbers, or the documents are not whole numbers.
    ValueError
        A number is out of range, the documents are not in ascending order, or there are no tokens.

    Examples
    --------
    >>> rows = PackedSequences(range(10, 19), 6, documents=[0, 3, 7])
    >>> rows
    <PackedSequences: 2 rows of 6 tokens, 75.0% full; 3 documents, 9 tokens of int64>
    >>> for name, array in rows[0].items():
    ...     print(name, array.tolist())
    tokens [13, 14, 15, 16, 17, 18]
    labels [14, 15, 16, -100, 18, -100]
    position_ids [0, 1, 2, 3, 0, 1]
    cu_seqlens [0, 4, 6, 6]
    """

    def __init__(
        self,
        tokens: ArrayLike,
        length: int,
        *,
        documents: ArrayLike,
        longest: int | None = None,
        window: int = 4096,
        padding: int = 0,
        seed: int | None = None,
    ) -> None:
        self.tokens = as_tokens(tokens)
        self.length = check_count("length", length)
        most = self.length if longest is None else check_count("longest", longest)
        most, window = min(most, self.length), check_count("window", window)
        try:
            self.padding = self.tokens.dtype.type(padding)
        except OverflowError:
            raise BadValue(f"padding must be a token of {self.tokens.dtype}, got {padding!r}") from None
        bounds = find_bounds(documents, len(self.tokens))
        sizes = np.diff(bounds)
        begins, sizes = bounds[:-1][sizes > 0], sizes[sizes > 0]
        if not len(sizes):
            raise ValueError("there are no tokens to pack: every document is empty")
        self._documents = len(sizes)
        if seed is not None:
            order = Shuffled(len(sizes), seed, 0).slice(0, len(sizes))
            begins, sizes = begins[order], sizes[order]
        # Pieces of a document: all but the last are full.
        counts = -(-sizes // most)
        owner = np.repeat(np.arange(len(sizes)), counts)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = begins[owner] + number * most
        sizes = np.minimum(sizes[owner] - number * most, most)
        row = np.empty(len(owner), np.int64)
        first = rows = 0
        for last in [*np.cumsum(counts)[window - 1 : -1 : window].tolist(), len(owner)]:
            row[first:last] = _fit_first(sizes[first:last], self.length) + rows
            first, rows = last, int(row[first:last].max()) + 1
        order = np.argsort(row, kind="stable")
        self._starts, self._sizes = starts[order], sizes[order]
        self._ends_document = (number == counts[owner] - 1)[order]
        per_row = np.bincount(row)
        self._rows = np.concatenate([[0], np.cumsum(per_row)])
        # One for the start of the first piece, and one for the end of padding.
        self._most = int(per_row.max()) + 2
        self.fill = float(sizes.sum() / (rows * self.length))

    def __getitem__(self, index: Any) -> dict[str, NDArray[Any]]:
        found = locate(self, index)
        if isinstance(found, int):
            return self._read(found)
        listed = number_rows(found).tolist()
        several = [self._read(row) for row in listed or [0]]
        return {name: np.stack([one[name] for one in several])[: len(listed)] for name in several[0]}

    def _read(self, row: int) -> dict[str, NDArray[Any]]:
        pieces = slice(self._rows[row], self._rows[row + 1])
        starts, sizes = self._starts[pieces], self._sizes[pieces]
        ends = np.cumsum(sizes)
        used, place = int(ends[-1]), np.arange(self.length)
        cuts = np.full(self._most, self.length, np.int32)
        cuts[0], cuts[1 : len(ends) + 1] = 0, ends
        tokens = np.full(self.length, self.padding)
        labels = np.full(self.length, _IGNORED, np.int64)
        at = place[:used] + np.repeat(starts - ends + sizes, sizes)
        tokens[:used] = self.tokens[at]
        # A piece that does not end its document has the next token as its last label.
        labels[:used] = self.tokens[np.minimum(at + 1, len(self.tokens) - 1)]
        labels[ends[self._ends_document[pieces]] - 1] = _IGNORED
        begins = np.repeat(np.append(ends - sizes, used), np.append(sizes, self.length - used))
        return {
            "tokens": tokens,
            "labels": labels,
            "position_ids": (place - begins).astype(np.int32),
            "cu_seqlens": cuts,
        }

    def __len__(self) -> int:
        return len(self._rows) - 1

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {len(self):,} rows of {self.length:,} tokens, {self.fill:.1%} full; "
            f"{self._documents:,} documents, {len(self.tokens):,} tokens of {self.tokens.dtype}>"
        )


def _fit_first(sizes: IndexArray, length: int) -> IndexArray:
    """Return the row of each piece: the longest first, each in the first row with enough space.

    >>> _fit_first(np.array([3, 4, 2, 1]), 6).tolist()
    [1, 0, 0, 1]
    """
    rows = np.empty(len(sizes), np.int64)
    order = np.argsort(-sizes, kind="stable")
    room = np.full(len(sizes), length)
    opened = int((sizes == length).sum())
    rows[order[:opened]] = np.arange(opened)  # full rows, with no space for another piece
    first = opened
    for piece in order[opened:].tolist():
        size = sizes[piece]
        row = first + int((room[first : opened + 1] >= size).argmax())
        rows[piece] = row
        room[row] -= size
        opened = max(opened, row + 1)
    return rows
