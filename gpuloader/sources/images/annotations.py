"""What moves along with an image: masks, boxes and keypoints, by the image's geometry.

All of it happens in the worker, on every kind of place: mask values are only selected, and boxes are a few
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import Checked, check_number, checked
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array
from gpuloader.foreign import is_instance
from gpuloader.sources.images.decoding import decode_as_stored, load_pillow
from gpuloader.sources.images.image import Affine, Geometry, Image, Step, as_image, is_encoded, size_of

Floats = NDArray[np.float64]
Size = tuple[int, int]

# ---------------------------------------------------------------------------------------------------------
# What a transform's fields say


@dataclass(frozen=True)
class Mask(Checked):
    """A field with a value for each pixel of the image; the nearest value is taken, as in Pillow.

    Attributes
    ----------
    field : str
        The field: an array of any dtype, a Pillow image, or an encoded image, whose palette or gray levels
        are used as they are stored. Its height and width are those of the image.
    fill : int or float
        The value outside the image.
    stacked : bool
        Whether the mask is an array of masks, of shape (n, height, width), instead of (height, width) or
        (height, width, channels).

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> from gpuloader.transforms import CenterCrop
    >>> _ = pytest.importorskip("PIL")
    >>> samples = [{"image": np.zeros((1, 2, 3), np.uint8), "mask": np.array([[3, 4]])}]
    >>> crop = CenterCrop(("image", Mask("mask", fill=255)), (1, 4))
    >>> next(iter(DataLoader(samples, places="cpu", transforms=[crop])))["mask"].tolist()
    [[[255, 3, 4, 255]]]
    """

    field: str
    fill: float = checked(check_number, 0)
    stacked: bool = checked(bool, False)


@dataclass(frozen=True)
class Boxes(Checked):
    """A field of boxes that move with the image, clipped to it; those with too little left are dropped.

    Attributes
    ----------
    field : str
        The field: an array of shape (n, 4). The result is float32, or float64 if the boxes are.
    labels : str or tuple of str
        The fields with one entry for each box. When a box is dropped, so are its entries. These fields may
        move with the image themselves, such as stacked masks.
    format : str
        'xyxy' for left, top, right, bottom; 'xywh' for left, top, width, height; 'cxcywh' for the center,
        width and height.
    fractions : bool
        Whether the numbers are fractions of the image's width and height instead of pixels.
    min_area, min_visible : float
        What a box needs in order to stay: its area in pixels of the result, and the fraction of it that is
        left, 0 to 1.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> from gpuloader.transforms import RandomFlip
    >>> _ = pytest.importorskip("PIL")
    >>> samples = [{"image": np.zeros((8, 10, 3), np.uint8), "boxes": [[1, 2, 5, 6]], "labels": [7]}]
    >>> flip = RandomFlip(("image", Boxes("boxes", "labels")), p=1)
    >>> batch = next(iter(DataLoader(samples, places="cpu", transforms=[flip])))
    >>> batch["boxes"].values.tolist(), batch["labels"].values.tolist()
    ([[5.0, 2.0, 9.0, 6.0]], [7])
    """

    field: str
    labels: str | tuple[str, ...] = ()
    format: str = checked(("xyxy", "xywh", "cxcywh"), "xyxy")
    fractions: bool = checked(bool, False)
    min_area: float = checked(check_number, 1.0)
    min_visible: float = checked(check_number, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_visible <= 1:
            raise ValueError(f"min_visible must be a number from 0 to 1, got {self.min_visible!r}")
        if not self.min_area >= 0:
            raise ValueError(f"min_area must be 0 or more, got {self.min_area!r}")

    def read(self, value: Any, size: Size) -> Floats:
        """Return boxes as left, top, right and bottom in pixels of an image of this height and width."""
        boxes = np.asarray(_as_floats(value, "boxes", (4,)) * _scale(size, self.fractions, 2))
        if self.format == "xyxy":
            return boxes
        start, extent = boxes[:, :2], boxes[:, 2:]
        if self.format == "cxcywh":
            return np.concatenate([start - extent / 2, start + extent / 2], 1)
        return np.concatenate([start, start + extent], 1)

    def write(self, corners: Floats, size: Size) -> Floats:
        """Return the boxes that `read` reads as these."""
        if self.format != "xyxy":
            first, second = corners[:, :2], corners[:, 2:]
            start = first if self.format == "xywh" else (first + second) / 2
            corners = np.concatenate([start, second - first], 1)
        return np.asarray(corners / _scale(size, self.fractions, 2))


def _check_mirrored(name: str, given: tuple[int, ...]) -> None:
    if not (np.iterable(given) and sorted(given) == [*range(len(given))]):
        raise ValueError(f"{name} must have each number of a point once, got {given!r}")


@dataclass(frozen=True)
class Keypoints(Checked):
    """A field of points that move with the image.

    Attributes
    ----------
    field : str
        The field: an array of shape (n, 2) or (instances, n, 2), of x and y. With 3 as the last dimension, it
        has x, y and the visibility, as in COCO; points that have no visibility or leave the image are then
        three zeros. The result is float32, or float64 if the points are.
    labels : str or tuple of str
        With `drop`, the fields with one entry for each point.
    fractions, drop : bool
        Whether the numbers are fractions of the image's width and height; and whether to drop points that
        leave the image, in an array of two dimensions.
    mirrored : tuple of int or None
        The number of the point that each point becomes in a mirrored image: the left eye becomes the right
        eye.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> from gpuloader.transforms import RandomFlip
    >>> _ = pytest.importorskip("PIL")
    >>> samples = [{"image": np.zeros((8, 10, 3), np.uint8), "eyes": np.float32([[2, 3], [7, 4]])}]
    >>> flip = RandomFlip(("image", Keypoints("eyes", mirrored=(1, 0))), p=1)
    >>> next(iter(DataLoader(samples, places="cpu", transforms=[flip])))["eyes"].tolist()
    [[[3.0, 4.0], [8.0, 3.0]]]
    """

    field: str
    labels: str | tuple[str, ...] = ()
    fractions: bool = checked(bool, False)
    drop: bool = checked(bool, False)
    mirrored: tuple[int, ...] | None = checked(_check_mirrored, None)


Annotation = Mask | Boxes | Keypoints
Fields = str | None | tuple[str | Annotation | None, ...]


def split_fields(given: Fields) -> tuple[str | None, tuple[Annotation, ...]]:
    """Return the field of images that a transform names, and what moves along with it.

    >>> split_fields(("image", "mask"))
    ('image', (Mask(field='mask', fill=0, stacked=False),))
    """
    if isinstance(given, str) or given is None:
        return given, ()
    if not isinstance(given, tuple) or not given or not isinstance(given[0], str | None):
        raise TypeError(
            f"expected the name of a field of images, or a tuple of it and what moves along, got {given!r}"
        )
    along: list[Annotation] = []
    for one in given[1:]:
        if not isinstance(one, str | Annotation):
            raise TypeError(f"expected the name of a mask, Mask, Boxes or Keypoints, got {one!r}")
        along.append(Mask(one) if isinstance(one, str) else one)
    names = [given[0], *(one.field for one in along)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"the field {twice[0]!r} is named twice in {given!r}")
    return given[0], tuple(along)


def labels_of(annotation: Annotation) -> tuple[str, ...]:
    """Return the fields whose entries go with those of an annotation.

    >>> labels_of(Boxes("boxes", "class")), labels_of(Mask("mask"))
    (('class',), ())
    """
    labels = () if isinstance(annotation, Mask) else annotation.labels
    return (labels,) if isinstance(labels, str) else labels


def names_of(annotations: Iterable[Annotation]) -> frozenset[str]:
    """Return all fields that annotations read and write."""
    return frozenset(name for one in annotations for name in (one.field, *labels_of(one)))


def varying_names(annotations: Iterable[Annotation]) -> frozenset[str]:
    """Return the fields whose number of entries differs from sample to sample.

    >>> sorted(varying_names([Mask("mask"), Boxes("boxes", "class"), Keypoints("pose")]))
    ['boxes', 'class']
    """
    return names_of(one for one in annotations if isinstance(one, Boxes) or getattr(one, "drop", False))


# ---------------------------------------------------------------------------------------------------------
# Moving the annotations of one sample


def move_annotations(
    annotations: Sequence[Annotation], values: Mapping[str, Any], size: Size, steps: Sequence[Step]
) -> dict[str, Any]:
    """Return the new values of what moves along with an image of this height and width.

    Raises `SampleError` that names the field if a value is not what was announced, or does not fit the image.
    """
    moved: dict[str, Any] = {}
    # Boxes last: a box's entries may be masks or points, which have been moved by then.
    for one in sorted(annotations, key=lambda one: isinstance(one, Boxes)):
        keep: Array | None = None
        try:
            if isinstance(one, Mask):
                moved[one.field] = _move_mask(one, values[one.field], size, steps)
            elif isinstance(one, Boxes):
                moved[one.field], keep = _move_boxes(one, values[one.field], size, steps)
            else:
                moved[one.field], keep = _move_points(one, values[one.field], size, steps)
        except SampleError as error:
            error.field = error.field or one.field
            raise
        if keep is not None:
            for label in labels_of(one):
                moved[label] = _keep(moved.get(label, values[label]), keep, label, one.field)
    return moved


def _keep(value: Any, keep: Array, label: str, field: str) -> Any:
    count = len(value) if hasattr(value, "__len__") else -1
    if count != len(keep):
        found = "a single value" if count < 0 else count
        raise SampleError(
            f"expected one entry for each of the {len(keep)} of {field!r}, got {found}", field=label
        )
    # An empty list has no dtype; other samples tell it.
    return np.asarray(value)[keep] if count else value


def _as_floats(value: Any, what: str, last: tuple[int, ...], most: int = 2) -> Floats:
    """Return an array whose last dimension is one of `last`; raise `SampleError` for other values."""
    try:
        found = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise SampleError(f"expected {what} as numbers, got {type(value).__name__}") from None
    if not found.size and found.ndim < 2:  # the list of an image without any
        found = found.reshape(0, last[0])
    if not 2 <= found.ndim <= most or found.shape[-1] not in last:
        raise SampleError(f"expected {what} of shape (n, {' or '.join(map(str, last))}), got {found.shape}")
    if not np.isfinite(found).all():
        raise SampleError(f"expected finite numbers, got {found[~np.isfinite(found)][0]} in {what}")
    return found


def _as_given(made: Floats, value: Any) -> Array:
    return made if getattr(value, "dtype", None) == np.float64 else made.astype(np.float32)


def _scale(size: Size, fractions: bool, times: int = 1) -> Floats | float:
    """Return the units of x and y in pixels, `times` times each; or one number for both."""
    return np.array([size[1], size[0]] * times, np.float64) if fractions else 1.0


def _size_after(size: Size, steps: Sequence[Step]) -> Size:
    last = steps[-1] if steps else None
    return size if last is None else last.window[2:] if isinstance(last, Geometry) else last.size


# ---------------------------------------------------------------------------------------------------------
# Boxes and keypoints

_CORNERS = np.array([[0, 1], [2, 1], [2, 3], [0, 3]])


def _move_boxes(one: Boxes, value: Any, size: Size, steps: Sequence[Step]) -> tuple[Array, Array]:
    """Return the boxes that stay, and which ones did."""
    corners = one.read(value, size)
    # Most samples have a few boxes, so the time depends on the number of calls, here and below.
    clipped = _clip(corners, (0, 0), size)
    # One pixel is left for rounding, for example by the tools with which people mark boxes.
    bad = abs(clipped - corners) > 1
    bad[:, 2:] |= corners[:, 2:] < corners[:, :2]
    if bad.any():
        row = int(bad.any(1).argmax())
        given = np.asarray(value)[row].tolist()
        raise SampleError(
            f"expected boxes within the image of {size[0]} x {size[1]} pixels, in the format {one.format!r} "
            f"of {'fractions' if one.fractions else 'pixels'}, got {given} as box {row}"
        )
    corners = clipped
    visible: Floats | float = 1.0
    for step in steps:
        # The corners of each box; the result is the box around them. Two are enough if it cannot turn.
        points = corners[:, _CORNERS] if isinstance(step, Affine) else corners.reshape(-1, 2, 2)
        points = move_points(points, step)
        points.sort(1)
        around = points[:, :: points.shape[1] - 1].reshape(-1, 4)
        corners = _clip_by(around, step)
        if one.min_visible:
            before = _area(around)
            visible *= np.divide(_area(corners), before, out=np.zeros_like(before), where=before > 0)
    after, area = _size_after(size, steps), _area(corners)
    # A difference below one in a million is due to rounding.
    keep = (area > 0) & (area >= one.min_area) & (visible >= one.min_visible - 1e-6)
    return _as_given(one.write(corners[keep], after), value), keep


def move_points(points: Floats, step: Step) -> Floats:
    """Return where x and y, of shape (..., 2), lie in the result of a step.

    >>> step = Geometry.of(10, 20).cut(2, 4, 8, 8).resized((4, 4), "bilinear").mirrored(flip=True)
    >>> move_points(np.array([[4.0, 2.0], [8.0, 4.0]]), step).tolist()
    [[4.0, 0.0], [2.0, 1.0]]
    """
    if isinstance(step, Affine):
        a, b, c, d, e, f = step.matrix
        return np.asarray((points - (c, f)) @ np.linalg.inv([[a, b], [d, e]]).T)
    left, top, right, bottom = step.box
    tall, wide = step.size
    y, x, height, width = step.window
    moved = (points - (left, top)) * (wide / (right - left), tall / (bottom - top)) - (x, y)
    if not (step.flip or step.flop):
        return moved
    return np.where((step.flip, step.flop), (width, height) - moved, moved)


def _clip(corners: Floats, low: Size, high: Size) -> Floats:
    """Return boxes clipped to what lies between two points, each y and x."""
    return np.minimum(np.maximum(corners, low[::-1] * 2), high[::-1] * 2)


def _clip_by(corners: Floats, step: Step) -> Floats:
    """Return boxes clipped to what a step leaves of the image; a margin around it does not count."""
    if isinstance(step, Affine):
        return _clip(corners, (0, 0), step.size)
    (tall, wide), (y, x, height, width) = step.size, step.window
    top, bottom = (height - tall + y, height + y) if step.flop else (-y, tall - y)
    left, right = (width - wide + x, width + x) if step.flip else (-x, wide - x)
    end = max(min(bottom, height), 0), max(min(right, width), 0)
    return _clip(corners, (max(top, 0), max(left, 0)), end)


def _area(corners: Floats) -> Floats:
    return np.asarray((corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1]))


def _move_points(one: Keypoints, value: Any, size: Size, steps: Sequence[Step]) -> tuple[Array, Array | None]:
    """Return the points that stay, and which ones did; None for all."""
    given = _as_floats(value, "points", (2, 3), 2 if one.drop else 3)
    points, inside = given[..., :2] * _scale(size, one.fractions), np.ones(given.shape[:-1], bool)
    mirrored = False
    for step in steps:
        points = move_points(points, step)
        corners = np.concatenate([points, points], -1).reshape(-1, 4)
        inside &= (_clip_by(corners, step) == corners).all(1).reshape(inside.shape)
        mirrored ^= isinstance(step, Geometry) and step.flip != step.flop
    made = given.copy()
    made[..., :2] = points / _scale(_size_after(size, steps), one.fractions)
    if given.shape[-1] == 3:
        inside &= given[..., 2] > 0
        if not one.drop:
            made[~inside] = 0
    if mirrored and one.mirrored is not None:
        if len(one.mirrored) != given.shape[-2]:
            raise SampleError(f"expected {len(one.mirrored)} points, as mirrored has, got {given.shape[-2]}")
        made, inside = made[..., list(one.mirrored), :], inside[..., list(one.mirrored)]
    keep = inside if one.drop else None
    return _as_given(made if keep is None else made[keep], value), keep


# ---------------------------------------------------------------------------------------------------------
# Masks


def _move_mask(one: Mask, value: Any, size: Size, steps: Sequence[Step]) -> Array:
    first = steps[0] if steps else None
    mask = _as_mask(value, first.find_region()[2] if isinstance(first, Geometry) else size[0])
    shape = found = mask.shape if isinstance(mask, np.ndarray) else size_of(mask)
    if one.stacked and len(shape) == 3:
        mask, shape = mask.transpose(1, 2, 0), (*shape[1:], shape[0])
    if shape[:2] != size or len(shape) not in ((3,) if one.stacked else (2, 3)):
        kind = "masks of shape (n, height, width)" if one.stacked else "a mask"
        advice = f"; if these are boxes, pass Boxes({one.field!r})" if found[1:] == (4,) else ""
        expected = f"expected {kind} of {size[0]} x {size[1]} pixels, as the image has"
        raise SampleError(f"{expected}, got the shape {found}{advice}")
    for step in steps:
        try:
            mask = _take(mask, step, one.fill)
        except (OverflowError, ValueError):
            problem = f"the fill {one.fill!r} does not fit a mask of {np.asarray(mask).dtype}"
            raise SampleError(problem) from None
    made = np.ascontiguousarray(mask.transpose(2, 0, 1) if one.stacked else mask)
    return made if made.flags.writeable else made.copy()


def _as_mask(value: Any, bottom: int) -> Any:
    """Return a mask with its values as they are stored: an array, or a loaded Pillow image of bytes.

    What lies below the row `bottom` may be missing.
    """
    if isinstance(value, Image) or is_encoded(value):
        image: Any = as_image(value)
        value = decode_as_stored(image.data, image.file, bottom, upright=image.upright)
    is_image = is_instance(value, "PIL.Image", "Image")
    if is_image and value.mode in ("L", "P"):
        value.load()
        return value
    if is_image or hasattr(value, "__array__"):
        found = np.asarray(value)
        if found.dtype.kind in "biuf":
            is_bytes = found.dtype == np.uint8 and found.ndim == 2 and found.size
            return load_pillow().fromarray(found) if is_bytes else found
        raise SampleError(f"expected a mask of numbers, got {found.dtype}")
    raise SampleError(f"expected a mask: an array, or a Pillow or encoded image, got {type(value).__name__}")


def _take(mask: Any, step: Step, fill: float) -> Array:
    """Return a mask after a step: the nearest value for each pixel, and `fill` for pixels outside."""
    if isinstance(step, Affine):
        # Pillow itself says which pixel is the nearest: it moves the numbers of the pixels.
        mask = np.asarray(mask)
        numbers = np.arange(mask.shape[0] * mask.shape[1], dtype=np.int32).reshape(mask.shape[:2])
        source = np.asarray(step.transform(load_pillow().fromarray(numbers), "nearest", -1))
        made: Array = mask.reshape(numbers.size, *mask.shape[2:]).take(source, 0, mode="clip")
        made[source < 0] = fill
        return made
    (tall, wide), (y, x, height, width) = step.size, step.window
    is_image = not isinstance(mask, np.ndarray)
    is_inside = 0 <= y <= tall - height and 0 <= x <= wide - width
    if is_inside and (is_image or step.filter is None):
        # NumPy takes ten times as long to pick columns of bytes, so that these stay an image until here.
        if step.filter is not None:
            mask = mask.resize((wide, tall), load_pillow().Resampling.NEAREST, step.box)
        window = np.asarray(mask)[y : y + height, x : x + width]
        return np.array(window[:: -1 if step.flop else 1, :: -1 if step.flip else 1], order="C")
    mask = np.asarray(mask)
    left, top, right, bottom = step.box
    rows = _nearest(mask.shape[0], (top, bottom), tall, (y, y + height), step.flop)
    columns = _nearest(mask.shape[1], (left, right), wide, (x, x + width), step.flip)
    made = mask.take(rows, 0, mode="clip").take(columns, 1, mode="clip")
    if rows.min() < 0:
        made[rows < 0] = fill
    if columns.min() < 0:
        made[:, columns < 0] = fill
    return made


def _nearest(
    length: int, box: tuple[float, float], size: int, window: Size, mirrored: bool
) -> NDArray[np.int32]:
    """Return which pixels of an axis Pillow picks for a window of a resized box; -1 for outside."""
    pillow = load_pillow()
    line = pillow.fromarray(np.arange(1, length + 1, dtype=np.int32)[None])  # a crop has 0 outside
    line = line.resize((size, 1), pillow.Resampling.NEAREST, (box[0], 0, box[1], 1))
    found: NDArray[np.int32] = np.asarray(line.crop((window[0], 0, window[1], 1)))[0] - 1
    return found[::-1] if mirrored else found
