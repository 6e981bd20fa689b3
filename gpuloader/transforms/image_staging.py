"""Images staged for a GPU: workers cut out the region that is needed, and kernels do everything else.

All randomness about an image is drawn before it is decoded, so a worker knows which region its window reads.
It stages that region and numbers that describe what to make of it. It decodes only when the batch is written.
With ``decode="device"`` it stages the encoded file instead, if the GPU can decode it.

From a region, the kernels make the same pixels as Pillow makes from the image, so a batch is the same on a
CPU. One kernel does everything unless colors change. Contrast needs the mean of the whole image, so color
changes and normalization then run in a second kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import SampleError
from gpuloader.fields.spec import Spec
from gpuloader.kernels.resample import TABLE_LINES, Interpolation, resample
from gpuloader.sources.images.decoding import Pixels, is_plain, shrink_size
from gpuloader.sources.images.image import Affine, Geometry, Image
from gpuloader.sources.images.regions import NUMBERS, Code, Encoded, Part, Region
from gpuloader.sources.images.resampling import CHANGES, find_shift
from gpuloader.transforms import image_transforms as images
from gpuloader.transforms.batch_transforms import Normalize, finish_options
from gpuloader.transforms.program import UNCHANGED, Chain, Decoding, KernelCall, Plain

Floats = NDArray[np.float32]
_CLIPS = 5  # dimensions of clips, frames, height, width and channels; workers always make clips


# ---------------------------------------------------------------------------------------------------------
# On the GPU: the transforms of a field, as one transform of its regions


@dataclass(frozen=True)
class Resample(Plain):
    """Makes images of one size from staged regions, as the transforms of single images say."""

    field: str | None  # the field of regions; None means the first one
    size: tuple[int, int]
    interpolation: Interpolation = "bilinear"
    changes: int = 0  # the most changes of color
    contrasts: int = 0  # and the most of these that change the contrast
    normalize: Normalize | None = None  # computed in the same pass; None leaves uint8 pixels in layout HWC
    # The computation for each number of samples and of channels. With regions, every batch has its own
    # layout, and settling the kernels takes longer than the rest of planning it.
    _settled: dict[tuple[int, Spec], Chain] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def find(self, names: Sequence[str], levels: Sequence[int]) -> str | None:
        """Return the name of the first field of images for a GPU, among fields of these names and levels.

        >>> Resample(None, (8, 8)).find(["label", "image"], [0, 2])
        'image'
        """
        found = zip(names, levels, strict=True)
        return next((name for name, level in found if level in (Region.level, Encoded.level)), None)

    def _merge(self, after: Normalize) -> Resample | None:
        # The kernel makes HWC, so a Normalize of another layout does not fit.
        free = self.normalize is None and after.layout == "HWC"
        return replace(self, normalize=after) if free else None

    def bind(self, inputs: Sequence[Spec]) -> Chain | KernelCall:
        """Return the computation for a batch."""
        if len(inputs) == 1 and len(inputs[0][0]) == _CLIPS:
            return UNCHANGED if self.normalize is None else self.normalize.bind(inputs)
        if len(inputs) != 3 or inputs[2][0][1:] != (NUMBERS + 2 * self.changes,):
            raise SampleError("expected a field of images")
        samples = inputs[1][0][0] - 1
        key = samples, (inputs[0][0][1:], inputs[0][1])
        if key in self._settled:
            return self._settled[key]
        given: dict[str, Spec] = dict(zip(("values", "row_splits", "geometry"), inputs, strict=True))
        resize: dict[str, Any] = {"size": self.size, "interpolation": self.interpolation, "samples": samples}
        # The first kernel makes bytes, as Pillow does between resizing and coloring.
        plain: dict[str, Any] = {"out_layout": "HWC", "dtype": "uint8"}
        finish = plain if self.normalize is None else finish_options(self.normalize)
        tables = (samples, TABLE_LINES, sum(self.size)), np.dtype(np.int32)
        given["tables"] = tables
        first = KernelCall.settle(given, resample, **resize, **(plain if self.changes else finish))
        made = Chain(((first, (0, 1, 2, 4), 3),), first.outputs, (tables,))
        if self.changes:
            from gpuloader.kernels.recolor import PARTS, recolor  # late: few programs change colors

            [pixels] = first.outputs
            sums = (samples, self.contrasts, PARTS), np.dtype(np.uint64)
            given = {"images": pixels, "numbers": inputs[2], "sums": sums}
            second = KernelCall.settle(given, recolor, first=NUMBERS, contrasts=self.contrasts, **finish)
            calls = (first, (0, 1, 2, 4), 5), (second, (5, 2, 6), 3)
            made = Chain(calls, second.outputs, (tables, pixels, sums))
        self._settled[key] = made
        return made


@dataclass(eq=False, repr=False)
class Decode(Plain):
    """Has the device decode a field of `Encoded` images, which then becomes a field of regions."""

    field: str | None  # None means the first one
    skips: bool = False

    def find(self, names: Sequence[str], levels: Sequence[int]) -> str | None:
        """Return the name of the first field of encoded images, among fields of these names and levels."""
        return names[list(levels).index(Encoded.level)] if Encoded.level in levels else None

    def bind(self, inputs: Sequence[Spec]) -> Decoding | Chain:
        """Return what is decoded for a batch."""
        if len(inputs) == 1 and len(inputs[0][0]) == _CLIPS:
            return UNCHANGED
        if len(inputs) != 1 + Encoded.level:
            raise SampleError("expected a field of images")
        (pixels, channels, _), dtype = inputs[-1]
        return Decoding((((pixels, channels), np.dtype(dtype)),), self.skips)


def plan_resampling(field: str | None, transforms: Sequence[images.ImageTransform]) -> Resample | None:
    """Return the transform that makes the images of a field on a GPU; None if workers must make them.

    >>> from gpuloader.transforms import RandomFlip
    >>> crop = images.RandomResizedCrop("image", 224, filter="bicubic")
    >>> plan_resampling("image", [crop, RandomFlip("image")])
    Resample(field='image', size=(224, 224), interpolation='bicubic', changes=0, contrasts=0, normalize=None)
    """
    size: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    changes: list[str] = []  # at most
    for transform in transforms:
        if isinstance(transform, images.Resize | images.RandomResizedCrop):
            interpolation = "bicubic" if transform.filter == "bicubic" else "bilinear"
        if isinstance(transform, images.ColorJitter):
            changes += transform._ranges()
        elif isinstance(transform, images.Resize) and not isinstance(transform.size, tuple | list):
            size = None
        elif isinstance(transform, images.CenterCrop | images.RandomResizedCrop | images.Resize):
            size = images.both(transform.size)
        elif isinstance(transform, images.PadImage):
            size = size and transform._grow(size)
        elif not getattr(transform, "_keeps_size", False):
            return None  # views are several images, and the user's own may make any plan
    contrasts = changes.count("contrast")
    if size is None:  # the slot is laid out before an image is read
        return None
    if contrasts:
        from gpuloader.kernels.recolor import MOST_CONTRASTS

        if contrasts > MOST_CONTRASTS:  # each takes a sum
            return None
    return Resample(field, size, interpolation, len(changes), contrasts)


# ---------------------------------------------------------------------------------------------------------
# On the worker: the region of each image


def stage_image(image: Any, plan: images.Plan, made_by: Resample) -> Region:
    """Return what a GPU needs to make an image: the region that its plan reads, and its geometry.

    `image` is what `as_image` returned, and `made_by` what `plan_resampling` returned for the transforms.
    """
    found = find_pass(plan, made_by)
    if found is None:
        # It takes more passes than the kernels make, for example a resize after a change of color. So the
        # worker makes the image, and the region is the whole result.
        _, _, height, width = images.find_geometry(plan).window
        geometry, colors = Geometry.of(height, width), np.zeros(2 * made_by.changes, np.float32)
        if not isinstance(image, Image):
            return cut_region(images.finish_plan(image, plan), geometry, colors)
        numbers = number_part((0, 0, height, width), geometry, colors)
        return Region((height * width, 3), numbers, partial(_make_into, image, plan))
    geometry, colors = found
    if not isinstance(image, Image):
        return cut_region(np.asarray(image), geometry, colors)
    shrink, geometry = image.plan_decoding(geometry)
    # The decoder may have to begin at whole units of columns, so the region includes these. It can then be
    # decoded straight into the slot.
    needed = geometry.find_part(*shrink_size(image.header.size, shrink))
    part = top, left, bottom, right = image.find_decodable(shrink, needed)
    numbers = number_part(part, geometry, colors)
    return Region(((bottom - top) * (right - left), 3), numbers, partial(image.decode_part, shrink, part))


def stage_encoded(image: Any, plan: images.Plan, made_by: Resample, index: object = None) -> Encoded:
    """Return what a GPU needs to decode and make an image, like `stage_image`.

    `index` is the sample's index in the dataset, for errors.
    """
    found, file = find_pass(plan, made_by), image.file if isinstance(image, Image) else ""
    number = index if isinstance(index, int) else -1
    # An image that GPUs decode differently from CPUs is decoded when it is written. So is one that looks
    # damaged, because the CPU's decoder knows for sure.
    if found is None or not isinstance(image, Image) or not is_plain(image.data):
        return Encoded.of(stage_image(image, plan, made_by), file, number)
    part = found[0].find_part(*image.header.size)
    code = Code(np.frombuffer(image.data, np.uint8), part, image.header.orientation, 3, file, number)
    return Encoded(code, number_part(part, *found))


def find_pass(plan: images.Plan, made_by: Resample) -> tuple[Geometry, Floats] | None:
    """Return the geometry and color changes by which kernels make an image; None if they cannot."""
    geometry = plan[0]
    assert isinstance(geometry, Geometry)
    changes: tuple[tuple[str, float], ...] = ()
    for step in plan[1:]:
        if isinstance(step, images.Coloring):
            changes += step.steps
            continue
        whole = Geometry.of(*geometry.window[2:])
        if isinstance(step, Affine) or step != whole.mirrored(flip=step.flip, flop=step.flop):
            return None
        # An image that is mirrored after its colors have changed can just as well be mirrored before.
        geometry = geometry.mirrored(flip=step.flip, flop=step.flop)
    if geometry.filter not in (None, made_by.interpolation):
        return None
    # As the kernel `recolor` takes them, padded to the most changes.
    numbers = np.zeros((made_by.changes, 2), np.float32)
    if not changes:
        return geometry, numbers.reshape(-1)
    names = [name for name, _ in changes]
    fits = len(names) <= made_by.changes and names.count("contrast") <= made_by.contrasts
    if not fits or not {*names} <= {*CHANGES}:
        return None
    with np.errstate(over="ignore"):  # a factor that no float can hold is infinite, as it is for Pillow
        for position, (name, amount) in enumerate(changes):
            amount = find_shift(amount) if name == "hue" else amount
            numbers[position] = CHANGES.index(name) + 1, amount
    return geometry, numbers.reshape(-1)


def _make_into(image: Image, plan: images.Plan, target: Pixels) -> None:
    target[...] = images.finish_plan(image, plan).reshape(target.shape)


def cut_region(pixels: Pixels, geometry: Geometry, colors: Iterable[float] = ()) -> Region:
    """Return the region of an image that a geometry reads, copied; `colors` come from `find_pass`.

    >>> geometry = Geometry.of(40, 60).cut(10, 20, 8, 8).resized((4, 4), "bilinear")
    >>> region = cut_region(np.zeros((40, 60, 3), np.uint8), geometry)
    >>> region.shape, region.geometry.astype(int).tolist()
    ((144, 3), [12, 12, 8, 18, 20, 10, 28, 18, 4, 4, 0, 0, 0])
    """
    part = top, left, bottom, right = geometry.find_part(*pixels.shape[:2])
    region = np.array(pixels[top:bottom, left:right], order="C").reshape(-1, *(pixels.shape[2:] or (1,)))
    return Region(region.shape, number_part(part, geometry, colors), region)


def number_part(part: Part, geometry: Geometry, colors: Iterable[float]) -> Floats:
    """Return the numbers for the kernels: a part, the geometry that reads it, and changes of color.

    >>> geometry = Geometry.of(40, 60).cut(10, 20, 8, 8)
    >>> number_part(geometry.find_part(40, 60), geometry, []).astype(int).tolist()
    [10, 10, 9, 19, 0, 0, 60, 40, 40, 60, 10, 20, 0]
    """
    # The box stays in the coordinates of the whole image: moving it into the part's would round its edges
    # differently.
    top, left, bottom, right = part
    y, x, *_ = geometry.window
    turn = geometry.flip + 2 * geometry.flop
    numbers = (bottom - top, right - left, top, left, *geometry.box, *geometry.size, y, x, turn, *colors)
    return np.array(numbers, np.float32)
