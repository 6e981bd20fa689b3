"""The geometry of a picture: which part of it to take, how to resample that, and how to mirror the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpuloader.fields.encoded import Part

FILTERS = {"bilinear": 1.0, "bicubic": 2.0}
"""The filters, and how far each reaches, in pixels of the coarser of the two grids."""

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How to get a picture of one size from a picture of any size.

    The box is resampled to the size, as Pillow's ``resize(size, filter, box)`` does, columns first. The
    window is cut from the result, and mirrored.

    Attributes
    ----------
    box : tuple of float
        Left, top, right and bottom of the part to resample, in pixels of the source. The filter reaches
        beyond it.
    size : tuple of int
        Height and width to which the box is resampled.
    window : tuple of int
        Top, left, height and width of the part of that to keep. What lies outside is black.
    flip, flop : bool
        Whether to mirror the window left to right, and top to bottom.
    filter : str or None
        'bilinear' or 'bicubic', antialiased; None if nothing is resampled and the box is the whole source.
    scaled : bool
        Whether the decoder may shrink the source first.

    Examples
    --------
    >>> Geometry.of(375, 500).resized((256, 341), "bilinear").cut(16, 58, 224, 224).window
    (16, 58, 224, 224)
    """

    box: Box
    size: tuple[int, int]
    window: tuple[int, int, int, int]
    flip: bool = False
    flop: bool = False
    filter: str | None = None
    scaled: bool = False

    @classmethod
    def of(cls, height: int, width: int) -> Geometry:
        """Return the geometry that keeps a picture as it is."""
        return cls((0, 0, width, height), (height, width), (0, 0, height, width))

    @property
    def height(self) -> int:
        """The height of the result."""
        return self.window[2]

    @property
    def width(self) -> int:
        """The width of the result."""
        return self.window[3]

    def cut(self, top: int, left: int, height: int, width: int) -> Geometry:
        """Return the geometry that keeps only a part of this one's result."""
        if self.flip:
            left = self.width - left - width
        if self.flop:
            top = self.height - top - height
        # Not dataclasses.replace, which takes five times as long, for every picture.
        window = self.window[0] + top, self.window[1] + left, height, width
        return Geometry(self.box, self.size, window, self.flip, self.flop, self.filter, self.scaled)

    def mirrored(self, *, flip: bool = False, flop: bool = False) -> Geometry:
        """Return the geometry that mirrors this one's result."""
        flip, flop = self.flip != flip, self.flop != flop
        return Geometry(self.box, self.size, self.window, flip, flop, self.filter, self.scaled)

    @property
    def can_resize(self) -> bool:
        """Whether `resized` applies: nothing is resampled yet, and the window lies within the picture."""
        top, left, height, width = self.window
        inside = top >= 0 and left >= 0 and top + height <= self.size[0] and left + width <= self.size[1]
        return self.filter is None and inside

    def resized(self, size: tuple[int, int], filter: str, *, scaled: bool = False) -> Geometry:  # noqa: A002
        """Return the geometry that resamples this one's result, which is not resampled yet, to a size."""
        top, left, height, width = self.window
        box = left, top, left + width, top + height
        return Geometry(box, size, (0, 0, *size), self.flip, self.flop, filter, scaled)

    def find_region(self) -> tuple[int, int, int, int]:
        """Return top, left, bottom and right of the part of the source that the result depends on.

        >>> Geometry.of(400, 400).cut(100, 50, 200, 200).resized((100, 100), "bilinear").find_region()
        (99, 49, 301, 251)
        """
        if self.filter is None:
            top, left, height, width = self.window
            return top, left, top + height, left + width
        (first, last), (near, far) = self._reach(1), self._reach(0)
        return first, near, last, far

    def find_part(self, height: int, width: int) -> Part:
        """Return `find_region` with one more pixel on each side, clipped to a source of this size.

        Pillow and the kernel round the edges of the box to float32, so they may read one pixel more.

        >>> Geometry.of(40, 60).cut(10, 20, 8, 8).resized((4, 4), "bilinear").find_part(40, 60)
        (8, 18, 20, 30)
        """
        top, left, bottom, right = self.find_region()
        top, left = min(max(top - 1, 0), height - 1), min(max(left - 1, 0), width - 1)
        return top, left, max(min(bottom + 1, height), top + 1), max(min(right + 1, width), left + 1)

    def _reach(self, axis: int) -> tuple[int, int]:
        """Return the first source row (axis 1) or column (axis 0) that is read, and the one after the last.

        The source's own edges are not known here, so the end may lie beyond the source.
        """
        assert self.filter is not None
        start, stop, count = self.box[axis], self.box[axis + 2], self.size[1 - axis]
        begin, length = self.window[1 - axis], self.window[3 - axis]
        begin, end = min(max(begin, 0), count - 1), max(min(begin + length, count), 1)
        scale = (stop - start) / count
        support = FILTERS[self.filter] * max(scale, 1.0)
        low = math.floor(start + (begin + 0.5) * scale - support + 0.5)
        high = math.floor(start + (end - 0.5) * scale + support + 0.5)
        return max(low, 0), max(high, 1)

    def shrunk(self, height: int, width: int, shrunk: tuple[int, int]) -> Geometry:
        """Return the geometry for a source of this size that a decoder has shrunk to another size."""
        down, across = shrunk[0] / height, shrunk[1] / width
        left, top, right, bottom = self.box
        right, bottom = min(right * across, shrunk[1]), min(bottom * down, shrunk[0])
        return replace(self, box=(left * across, top * down, right, bottom))
