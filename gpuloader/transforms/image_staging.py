"""Pictures that a GPU decodes: workers only find out which region of each is needed, and whether it can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import SampleError
from gpuloader.fields.image_regions import NUMBERS, Code, Encoded, Part, Region
from gpuloader.kernels.cast import resolve_target
from gpuloader.kernels.crop import join_shape
from gpuloader.kernels.recolor import MOST_CONTRASTS, PARTS, recolor, recolor_on_host
from gpuloader.kernels.resample import Interpolation, resample, resample_on_host
from gpuloader.sources.images.decoding import Pixels, is_plain, shrink_size
from gpuloader.sources.images.image import Geometry, Picture, as_picture, size_of
from gpuloader.transforms.image_transforms import (
    CenterCrop,
    ColorJitter,
    PictureTransform,
    Plan,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    both,
    find_geometry,
    finish_plan,
    list_changes,
    merge_plan,
    number_changes,
    plan_picture,
)
from gpuloader.transforms.normalizing import Normalize
from gpuloader.transforms.program import Chain, KernelCall, Plain, Spec, Transform, no_rows

# Pictures for a GPU: workers decode the region that is needed, and kernels do everything else.
#
# They make the same pixels of a region as Pillow makes of the picture, so a batch is the same on a CPU. One
# kernel does everything, unless colors change. A second kernel then changes them and normalizes, because a
# change of contrast needs the mean of the whole picture.

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Resample(Plain):
    """Makes pictures of one size of staged regions, as the transforms of pictures before it say.

    Attributes
    ----------
    field : str or None
        The field of regions; None means the first one.
    size : tuple of int
        Height and width of the result.
    interpolation : str
        The filter, 'bilinear' or 'bicubic'.
    changes, contrasts : int
        How many changes of color there are at most, and how many of them are of contrast.
    normalize : Normalize or None
        The normalization to compute in the same pass; None leaves uint8 pixels in the layout HWC.
    """

    field: str | None
    size: tuple[int, int]
    interpolation: Interpolation = "bilinear"
    changes: int = 0
    contrasts: int = 0
    normalize: Normalize | None = None

    def find(self, names: Sequence[str], levels: Sequence[int]) -> str | None:
        """Return the name of the field, among fields of these names and levels."""
        return find_staged(self.field, names, levels)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall | Chain:
        """Return the computation for a batch."""
        if len(inputs) != 3 or inputs[2][0][1:] != (NUMBERS + 2 * self.changes,):
            raise SampleError("expected a field of pictures")
        (_, channels), (splits,) = inputs[0][0], inputs[1][0]
        pixels = (splits - 1, *self.size, channels), np.dtype(np.uint8)
        plain: dict[str, Any] = {"out_layout": "HWC", "dtype": "uint8"}
        options, output, last, axes = plain, pixels, self.normalize, None
        if last is not None:
            layout, axes = last.arrangement
            _, held = resolve_target(last.dtype, ("float16", "bfloat16", "float32"))
            options = {"mean": last.mean, "std": last.std, "scale": last.scale}
            options |= {"out_layout": layout, "dtype": last.dtype}
            output = (splits - 1, *join_shape(channels, *self.size, layout)), held
        names = "values", "row_splits", "geometry"
        empty = {
            name: no_rows(spec, int(name == "row_splits")) for name, spec in zip(names, inputs, strict=True)
        }
        made = partial(KernelCall.settle, empty, size=self.size, interpolation=self.interpolation)
        if not self.changes:
            return made(output, resample, resample_on_host, axes=axes, **options)
        first, sums = made(pixels, resample, resample_on_host, **plain), self._find_sums(splits - 1)
        given = {"pictures": no_rows(pixels), "numbers": empty["geometry"], "sums": no_rows(sums)}
        colors = {"first": NUMBERS, "contrasts": self.contrasts, "axes": axes, **options}
        second = KernelCall.settle(given, output, recolor, recolor_on_host, **colors)
        return Chain(((first, (0, 1, 2), 4), (second, (4, 2, 5), 3)), (output,), (pixels, sums))

    def _find_sums(self, samples: int) -> Spec:
        return (samples, self.contrasts, PARTS), np.dtype(np.uint64)


def find_staged(field: str | None, names: Sequence[str], levels: Sequence[int]) -> str | None:
    """Return a field's name; if it is None, that of the first field of pictures for a GPU.

    >>> find_staged(None, ["label", "image"], [0, 2])
    'image'
    """
    staged = [
        name for name, level in zip(names, levels, strict=True) if level in (Region.level, Encoded.level)
    ]
    return field if field is not None or not staged else staged[0]


def plan_resampling(field: str | None, transforms: Sequence[PictureTransform]) -> Resample | None:
    """Return the transform that makes the pictures of a field on a GPU; None if workers must make them.

    Workers must, if the pictures' size is not known before they are read, if a transform is the user's, or
    if the contrast changes too often.

    >>> plan_resampling("image", [RandomResizedCrop("image", 224, filter="bicubic"), RandomFlip("image")])
    Resample(field='image', size=(224, 224), interpolation='bicubic', changes=0, contrasts=0, normalize=None)
    """
    known = CenterCrop, ColorJitter, RandomFlip, RandomResizedCrop, Resize
    if not all(isinstance(transform, known) for transform in transforms):
        return None
    size: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    for transform in transforms:
        if isinstance(transform, Resize | RandomResizedCrop):
            interpolation = "bicubic" if transform.filter == "bicubic" else "bilinear"
        if isinstance(transform, CenterCrop | RandomResizedCrop):
            size = both(transform.size)
        elif isinstance(transform, Resize):
            size = both(transform.size) if isinstance(transform.size, tuple | list) else None
    changes = list_changes(transforms)
    contrasts = changes.count("contrast")
    if size is None or contrasts > MOST_CONTRASTS:
        return None
    return Resample(field, size, interpolation, len(changes), contrasts)


def fuse_resampling(transforms: Sequence[Transform]) -> list[Transform]:
    """Return the transforms with each `Normalize` merged into a `Resample` directly before it.

    >>> fused = fuse_resampling([Resample("image", (8, 8)), Normalize("image", mean=0.5)])
    >>> len(fused), fused[0].normalize.mean
    (1, 0.5)
    """
    fused: list[Transform] = []
    for transform in transforms:
        before = fused[-1] if fused else None
        if (
            isinstance(before, Resample)
            and isinstance(transform, Normalize)
            and before.normalize is None
            and transform.field == before.field
            and transform.layout == "HWC"
            and not transform.draws
        ):
            fused[-1] = replace(before, normalize=transform)
        else:
            fused.append(transform)
    return fused


def stage_picture(
    value: Any, transforms: Sequence[PictureTransform], rng: np.random.Generator, interpolation: str
) -> Region:
    """Return what a GPU needs to make a picture: the region that its transforms read, and its geometry.

    An encoded picture is decoded only when the region is written. A picture that takes more than one pass, as
    one that is resized after a change of color, is made then.

    Parameters
    ----------
    value : object
        What `as_picture` accepts.
    transforms : sequence of PictureTransform
        The transforms in order.
    rng : numpy.random.Generator
        The generator of the sample.
    interpolation : str
        The filter that the kernel is launched with.

    Raises
    ------
    PictureError
        The picture has no header.
    SampleError
        The value is not a picture.
    """
    picture = as_picture(value)
    plan = plan_picture(size_of(picture), transforms, rng)
    return stage_plan(picture, plan, transforms, interpolation)


def find_pass(
    plan: Plan, transforms: Sequence[PictureTransform], interpolation: str
) -> tuple[Geometry, Floats] | None:
    """Return the geometry and the changes of color by which kernels make a picture; None if they cannot."""
    merged = merge_plan(plan)
    if merged is None or merged[0].filter not in (None, interpolation):
        return None
    return merged[0], number_changes(merged[1], len(list_changes(transforms)))


def stage_plan(
    picture: Any, plan: Plan, transforms: Sequence[PictureTransform], interpolation: str
) -> Region:
    """Return what a GPU needs to make a picture, which is what `as_picture` returned, by its plan."""
    found = find_pass(plan, transforms, interpolation)
    if found is None:
        made = find_geometry(plan)
        whole = Geometry.of(made.height, made.width)
        unchanged = number_changes((), len(list_changes(transforms)))
        if not isinstance(picture, Picture):
            return cut_region(finish_plan(picture, plan), whole, unchanged)
        _, numbers = find_part((made.height, made.width), whole, unchanged)
        return Region((made.height * made.width, 3), numbers, partial(_make_into, picture, plan))
    geometry, changes = found
    if not isinstance(picture, Picture):
        return cut_region(np.asarray(picture), geometry, changes)
    shrink, geometry = picture.plan_decoding(geometry)
    needed = geometry.find_part(*shrink_size(size_of(picture), shrink))
    part = top, left, bottom, right = picture.find_decodable(shrink, needed)
    numbers = _number_part(part, geometry, changes)
    return Region(((bottom - top) * (right - left), 3), numbers, partial(_decode_into, picture, shrink, part))


def _make_into(picture: Picture, plan: Plan, target: Pixels) -> None:
    target[...] = finish_plan(picture, plan).reshape(target.shape)


def _decode_into(picture: Picture, shrink: int, part: Part, target: Pixels) -> None:
    """Decode a part of a picture, straight into its place if the decoder can."""
    top, left, bottom, right = part
    out = target.reshape(bottom - top, right - left, 3)
    if out.shape[:2] == shrink_size(size_of(picture), shrink):
        pixels = picture.decode_at(shrink, out)
        if pixels is not out:
            out[...] = np.asarray(pixels)
    else:
        picture.decode_part(shrink, part, out)


def cut_region(pixels: Pixels, geometry: Geometry, changes: Iterable[float] = ()) -> Region:
    """Return the region of a picture that a geometry reads, copied; see `number_changes` for the changes.

    >>> geometry = Geometry.of(40, 60).cut(10, 20, 8, 8).resized((4, 4), "bilinear")
    >>> region = cut_region(np.zeros((40, 60, 3), np.uint8), geometry)
    >>> region.pixels.shape, region.geometry.astype(int).tolist()
    ((144, 3), [12, 12, 8, 18, 20, 10, 28, 18, 4, 4, 0, 0, 0])
    """
    (top, left, bottom, right), numbers = find_part(pixels.shape[:2], geometry, changes)
    region = np.array(pixels[top:bottom, left:right], order="C").reshape(-1, *(pixels.shape[2:] or (1,)))
    return Region(region.shape, numbers, region)


def find_part(
    size: tuple[int, ...], geometry: Geometry, changes: Iterable[float] = ()
) -> tuple[Part, Floats]:
    """Return the part of a picture of this size that a geometry reads, and the numbers for the kernels.

    >>> find_part((40, 60), Geometry.of(40, 60).cut(10, 20, 8, 8).resized((4, 4), "bilinear"))[0]
    (8, 18, 20, 30)
    """
    tall, wide = size
    part = geometry.find_part(tall, wide)
    return part, _number_part(part, geometry, changes)


def _number_part(part: Part, geometry: Geometry, changes: Iterable[float]) -> Floats:
    top, left, bottom, right = part
    y, x, *_ = geometry.window
    turn = geometry.flip + 2 * geometry.flop
    numbers = (bottom - top, right - left, top, left, *geometry.box, *geometry.size, y, x, turn, *changes)
    return np.array(numbers, np.float32)


def stage_encoded(
    value: Any,
    transforms: Sequence[PictureTransform],
    rng: np.random.Generator,
    interpolation: str,
    index: object = None,
) -> Encoded:
    """Return what a GPU needs to decode and make a picture.

    A picture that GPUs do not decode as CPUs do is decoded when it is written, and one that takes more than
    one pass is made then. So is one that looks damaged, since the CPU's decoder knows for sure.

    Parameters
    ----------
    value : object
        What `as_picture` accepts.
    transforms : sequence of PictureTransform
        The transforms in order.
    rng : numpy.random.Generator
        The generator of the sample.
    interpolation : str
        The filter that the kernel is launched with.
    index : object
        The sample's index in the dataset.

    Raises
    ------
    PictureError
        The picture has no header.
    SampleError
        The value is not a picture.
    """
    picture = as_picture(value)
    plan = plan_picture(size_of(picture), transforms, rng)
    number = index if isinstance(index, int) else -1
    found = find_pass(plan, transforms, interpolation)
    if found is not None and isinstance(picture, Picture) and is_plain(picture.data):
        part, geometry = find_part(picture.header.size, *found)
        data = np.frombuffer(picture.data, np.uint8)
        code = Code(data, part, picture.header.orientation, 3, picture.file, number)
        return Encoded(code, geometry)
    file = picture.file if isinstance(picture, Picture) else ""
    return Encoded.of(stage_plan(picture, plan, transforms, interpolation), file, number)
