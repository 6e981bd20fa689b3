"""`show`: a batch of images drawn as a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.fields.ragged import Ragged
from gpuloader.foreign import is_tensor, tensor_array
from gpuloader.sources.images.annotations import Annotation, Boxes, Fields, Mask, labels_of, split_fields
from gpuloader.sources.images.decoding import Pixels, load_pillow

_GAP = 4
_LINE = 14  # the height of a line of text
# Colors for the values of masks and the boxes of an image; whatever is 0 stays as it is.
_COLORS = ((np.arange(256)[:, None] * (97, 57, 191) + (160, 40, 20)) % 256).astype(np.uint8)


def show(
    batch: Any, *, columns: int | None = None, classes: Sequence[str] | None = None, fields: Fields = None
) -> Any:
    """Return a batch of images as one Pillow image, which notebooks display, with their labels below.

    With `fields`, masks, boxes and keypoints are drawn into the images.

    Parameters
    ----------
    batch : object
        The images: an array or tensor of any library, or a tuple, list or dict whose first entry has the
        images and whose second has one label per image. Images have the shape (n, height, width, channels) or
        (n, channels, height, width), with 1 or 3 channels. Floats are stretched so that the least is black
        and the greatest white; NaN is black.
    columns : int or None
        Images per row; None makes the grid about square.
    classes : sequence of str or None
        The names of the labels 0, 1, 2, …
    fields : str, tuple or None
        The field of images and what moves along with it, as in the transforms: ``("image", "mask",
        Boxes("boxes", labels="labels"))``. A box shows the first of its labels, and no labels are below the
        images then. None takes the first two entries of the batch.

    Returns
    -------
    PIL.Image.Image
        The grid; ``save`` writes it to a file.

    Raises
    ------
    TypeError
        `batch` is not a batch, but for example a loader.
    ValueError
        The batch has no images, or not one label for each; it lacks one of `fields`; a label has no name in
        `classes`; or `columns` is not an integer of 1 or more.
    MissingPackage
        Pillow is not installed.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("PIL")
    >>> show((np.zeros((6, 3, 32, 32), np.float32), range(6))).size
    (112, 104)
    """
    pillow = load_pillow()
    from PIL import ImageDraw

    name, along = split_fields(fields)
    images, labels = _split(batch) if fields is None else (_to_host(_find(batch, name)), None)
    pixels = _as_bytes(images)
    count, tall, wide, _ = pixels.shape
    if labels is not None and (not labels.ndim or len(labels) != count):
        found = f"{len(labels)} labels" if labels.ndim else "a single label"
        raise ValueError(f"expected one label per image, got {count} images and {found}")
    columns = math.ceil(math.sqrt(count)) if columns is None else check_count("columns", columns)
    across, down = wide + _GAP, tall + _GAP + (_LINE if labels is not None else 0)
    grid = pillow.new("RGB", (columns * across + _GAP, -(-count // columns) * down + _GAP), "white")
    draw = ImageDraw.Draw(grid)
    for position, image in enumerate(pixels):
        row, column = divmod(position, columns)
        left, top = _GAP + column * across, _GAP + row * down
        grid.paste(_annotate(image, position, batch, along, classes), (left, top))
        if labels is not None:
            draw.text((left, top + tall + 1), _describe(labels[position], classes), "black")
    return grid


def _annotate(
    pixels: Pixels, position: int, batch: Any, along: Sequence[Annotation], classes: Sequence[str] | None
) -> Any:
    """Return an image of a batch with its masks, boxes and keypoints."""
    from PIL import ImageDraw

    size = pixels.shape[:2]
    for mask in [one for one in along if isinstance(one, Mask)]:  # first, below the boxes
        values = _rows_of(batch, mask.field, position)
        layers = values if mask.stacked else values[None]
        if layers.shape[1:] != size:
            expected = f"masks of {size[0]} x {size[1]} pixels in {mask.field!r}"
            raise ValueError(f"expected {expected}, got {values.shape}")
        for number, layer in enumerate(layers, 1):
            numbers = layer.astype(np.int64) * number
            colors = _COLORS[numbers % 256] // 2 + pixels // 2
            pixels = np.where((numbers != 0)[..., None], colors, pixels)
    image = load_pillow().fromarray(pixels)
    draw = ImageDraw.Draw(image)
    for one in [one for one in along if not isinstance(one, Mask)]:
        rows = _rows_of(batch, one.field, position)
        if not isinstance(one, Boxes):
            points = rows.reshape(-1, rows.shape[-1])
            seen = points[points[:, 2] > 0] if points.shape[1] == 3 else points
            for x, y in (seen[:, :2] * (size[::-1] if one.fractions else (1, 1))).tolist():
                draw.ellipse((x - 2, y - 2, x + 2, y + 2), "yellow", "black")
            continue
        names = [_rows_of(batch, name, position) for name in labels_of(one)[:1]]
        for row, corners in enumerate(one.read(rows, size).tolist()):
            if corners[2] > corners[0]:  # what fills up short rows is not a box
                color = tuple(_COLORS[(row + 1) % 256].tolist())
                draw.rectangle(corners, outline=color, width=2)
                if names and not np.ndim(names[0][row]):
                    draw.text((corners[0] + 3, corners[1] + 2), _describe(names[0][row], classes), color)
    return image


def _rows_of(batch: Any, name: str, position: int) -> NDArray[Any]:
    """Return what a field of a batch holds for one sample."""
    value = _find(batch, name)
    if isinstance(value, Ragged):
        begin, end = _to_host(value.row_splits[0])[position : position + 2].tolist()
        return _to_host(value.values)[begin:end]
    return np.asarray(_to_host(value)[position])


def _find(batch: Any, name: str | None) -> Any:
    """Return a field of a batch, named as in the transforms."""
    if name is None:
        name = next(iter(batch)) if isinstance(batch, Mapping) else "0"
    if name == "0" and not isinstance(batch, Mapping | tuple | list):
        return batch
    value = batch
    for part in name.split("."):
        entries = value if isinstance(value, Mapping) else dict(enumerate(value))
        entries = {str(key): entry for key, entry in entries.items()}
        entries |= {field: getattr(value, field) for field in getattr(value, "_fields", ())}
        if part not in entries:
            raise ValueError(f"the batch has no field {name!r}, but {[*entries]}")
        value = entries[part]
    return value


def _split(batch: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the images and the labels of a batch, None if it has none."""
    entries = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(entries, tuple | list):
        entries = [entries]
    if not entries:
        raise ValueError("the batch is empty")
    images = _to_host(entries[0])
    if not images.ndim or images.dtype.kind in "OSUM":  # what NumPy makes of other objects
        raise TypeError(
            "expected an array of images, or a tuple, list or dict of it and labels: pass a batch, such as "
            f"next(iter(loader)); got {type(batch).__name__}"
        )
    return images, _to_host(entries[1]) if len(entries) > 1 else None


def _to_host(values: Any) -> NDArray[Any]:
    """Return an array or tensor of any library as a NumPy array."""
    for move in ("detach", "cpu", "get"):  # of PyTorch, of PyTorch and Paddle, of CuPy
        if not isinstance(values, np.ndarray | list | tuple | dict | range) and hasattr(values, move):
            values = getattr(values, move)()
    # float32 can hold the numbers of the dtypes that NumPy lacks.
    return tensor_array(values, np.dtype(np.float32)) if is_tensor(values) else np.asarray(values)


def _as_bytes(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Return images as uint8 (n, height, width, 3)."""
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or not images.size:
        advice = "; pass one clip, or the views of one image" if images.ndim == 5 else ""
        raise ValueError(f"expected images of shape (n, height, width, channels), got {images.shape}{advice}")
    if images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.shape[3] not in (1, 3):
        raise ValueError(f"expected images with 1 or 3 channels, got the shape {images.shape}")
    if images.dtype != np.uint8:
        floats = images.astype(np.float32)
        finite = floats[np.isfinite(floats)]
        # Infinities become the nearest finite number, so that one of them does not blacken everything else.
        least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        known = np.nan_to_num(floats, nan=least, posinf=most, neginf=least)
        images = ((known - least) * (255 / ((most - least) or 1))).round().astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(images, (*images.shape[:3], 3)))


def _describe(label: Any, classes: Sequence[str] | None) -> str:
    if np.ndim(label):  # shares of several classes, as MixUp makes them
        parts = [(float(share), number) for number, share in enumerate(label) if share > 0]
        largest = sorted(parts)[:-3:-1]
        return " ".join(f"{_describe(number, classes)} {share:.1f}" for share, number in largest)
    if isinstance(label, str):
        return label
    if not float(label).is_integer():
        return f"{float(label):g}"
    number = int(label)
    if classes is not None and not 0 <= number < len(classes):
        raise ValueError(f"label {number} has no name: classes has {len(classes)} names")
    return str(number) if classes is None else classes[number]
