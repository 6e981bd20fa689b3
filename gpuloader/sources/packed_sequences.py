"""`PackedSequences`: documents packed into rows of equal length, for training language models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.checks import check_count
from gpuloader.errors import BadValue
from gpuloader.order.order import IndexArray, Shuffled
from gpuloader.sources.array_rows import locate
from gpuloader.sources.block import each_row
from gpuloader.sources.dataset import Dataset
from gpuloader.sources.tokens import as_tokens, find_bounds

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
        listed = list(each_row(found))
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
