"""Makes the images of each sample, before the sample is written: decoded, and all of one size.

For a GPU place, only the regions that are needed are staged, and the GPU makes the images from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain as chained
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.batches.tree import entries_of, join_name, with_entries
from gpuloader.errors import SampleError, SourceError
from gpuloader.foreign import is_instance
from gpuloader.order.randomness import Draw
from gpuloader.sources.images.image import Image, Step, as_image, is_encoded, size_of
from gpuloader.transforms.image_transforms import ImageTransform, Plan, finish_plan, make_plans

if TYPE_CHECKING:
    from gpuloader.sources.images.annotations import Annotation
    from gpuloader.transforms.image_staging import Resample

_PURPOSE = 1  # the purpose of a sample's random numbers; 0 is for numbers that the dataset draws
_SMALL = 2**16  # bytes of an array that is copied
_VIDEO = "gpuloader.sources.images.video", "Video"  # imported only by programs that read videos


@dataclass(frozen=True, slots=True)
class ImageStage:
    """What the thread that has fetched a sample does to its images."""

    chains: Mapping[str | None, tuple[ImageTransform, ...]]  # by field; None is a sample's first image
    decodes: bool = False  # whether bytes in other fields are images, too
    names: tuple[str, ...] | None = None  # the declared names of the fields of samples that are tuples
    # The chains whose images a GPU makes, and the transform that makes them from the regions staged here.
    staged: Mapping[str | None, Resample] = field(default_factory=dict)
    encoded: bool = False  # whether the GPU also decodes these images, as far as it can
    # What moves along with the images of a chain, and the names of all these fields.
    along: Mapping[str | None, tuple[Annotation, ...]] = field(default_factory=dict)
    carried: frozenset[str] = field(init=False, default=frozenset())
    # The names of the fields that have been images so far, for error messages.
    found: set[str] = field(default_factory=set, compare=False)

    def __post_init__(self) -> None:
        if self.along:
            # Imported late, because most images have nothing that moves along.
            from gpuloader.sources.images.annotations import names_of

            object.__setattr__(self, "carried", frozenset().union(*map(names_of, self.along.values())))

    def begin(self, sample: Any, draw: Draw, key: object) -> Any:
        """Return a sample with its images as arrays, or as regions for a GPU; `finish` takes it.

        `draw` holds the seed and the epoch of the random numbers; `key` is the sample's index or its
        substitute. Raises `SampleError` if an image cannot be decoded, a value is not an image, or there is
        no such field.
        """
        # Each sample has its own numbers, so that its crops are the same whichever worker makes them.
        rng, names = draw.make_generator(key, _PURPOSE), self.names
        making = _Making(self, rng, key, set(), [], {}, {})
        if names and isinstance(sample, tuple | list) and len(sample) == len(names):
            making.is_named, sample = True, dict(zip(names, sample, strict=True))
        made = making.made = making.walk(sample, "")
        # A transform that met no image has a mistyped field, which would otherwise go unnoticed.
        if not self.chains.keys() <= making.done:
            missing = next(name for name in self.chains if name not in making.done)
            what = "no image (encoded or uint8 pixels)" if missing is None else f"no field {missing!r}"
            raise SampleError(f"{what} to transform; the sample has the fields {making.seen}")
        if not self.along:
            return [*made.values()] if making.is_named else made
        for name in sorted(self.carried - making.carried.keys()):
            problem = f"no field {name!r} to move with the image; the sample has the fields {making.seen}"
            raise SampleError(problem, field=name)
        # Only what stays as it is may wait: a dataset may refill its arrays for the next sample, and Pillow's
        # images hold files open.
        for name, value in making.carried.items():
            if type(value) is np.ndarray and value.nbytes <= _SMALL and not value.dtype.hasobject:
                making.carried[name] = value.copy()
            elif not isinstance(value, bytes | Image):
                return making.finish()
        return making

    def finish(self, begun: Any) -> Any:
        """Return the sample, with what moves along moved; raises what `begin` raises."""
        return begun.finish() if isinstance(begun, _Making) else begun


@dataclass(slots=True)
class _Making:
    """One sample's images being made."""

    stage: ImageStage
    rng: np.random.Generator
    key: object
    # Given by the caller, because default factories take half as long again, for every sample.
    done: set[str | None]  # the chains
    seen: list[str]  # the fields
    # The values of what moves along; and by chain, the image's size and its plans.
    carried: dict[str, Any]
    planned: dict[str | None, tuple[tuple[int, int], list[Plan]]]
    made: Any = None  # the sample with its images
    is_named: bool = False  # whether the sample was a tuple whose fields have declared names

    def finish(self) -> Any:
        """Return the sample with what moves along moved."""
        made, moved = self.made, dict[str, Any]()
        for chain, along in self.stage.along.items():
            # Imported late, because most images have nothing that moves along.
            from gpuloader.sources.images.annotations import move_annotations

            views, (size, plans) = [], self.planned[chain]
            for plan in plans:
                steps = [step for step in plan if isinstance(step, Step)]
                views.append(move_annotations(along, self.carried, size, steps))
            one = len(views) == 1
            moved |= (
                views[0] if one else {name: np.stack([view[name] for view in views]) for name in views[0]}
            )
        if moved:
            is_flat = type(made) is dict and moved.keys() <= made.keys()  # as most samples are
            made = made | moved if is_flat else _put(made, "", moved)
        return [*made.values()] if self.is_named else made

    def walk(self, value: Any, name: str) -> Any:
        """Return a value with all images in it made: those that a chain names, and recognizable ones."""
        stage, chains = self.stage, self.stage.chains
        if name in chains:
            return self.make(value, name, name)
        if name in stage.carried:
            self.carried[name] = value
            self.seen.append(name)
            return value
        named, is_first = name or "0", False
        if not isinstance(value, list | tuple):
            # A sample that is not a container has one field, which goes by the name '0'.
            if not name and "0" in chains and not isinstance(value, Mapping):
                return self.make(value, named, named)
            if isinstance(value, Image) or is_instance(value, *_VIDEO):
                return self.make(value, None, named)
            # A transform without a field is for the first image; a mask or a second view next to it is left
            # alone.
            is_first = None in chains and None not in self.done
            if is_encoded(value):
                return self.make(value, None, named) if stage.decodes or is_first else value
        if (entries := entries_of(value)) is not None:
            made = []
            for part, entry in entries:
                path = f"{name}.{part}" if name else str(part)
                # Labels are numbers: the most common entries next to images, and they never hold any.
                is_number = type(entry) is int or type(entry) is float
                if is_number and path not in chains and path not in stage.carried:
                    self.seen.append(path)
                    made.append(entry)
                else:
                    made.append(self.walk(entry, path))
            return with_entries(value, made)
        shape = getattr(value, "shape", None)
        if shape is None:  # an image of Pillow
            is_image = hasattr(value, "__array_interface__")
        else:
            is_clip = len(shape) == 4 and shape[3] in (1, 3)
            is_image = getattr(value, "dtype", None) == np.uint8 and (len(shape) in (2, 3) or is_clip)
        if is_image and is_first:
            return self.make(value, None, named)
        if is_image:  # so that errors about its shape can say what to do about images
            stage.found.add(named)
        self.seen.append(named)
        return value

    def make(self, value: Any, chain: str | None, named: str) -> Any:
        """Return an image or a clip: by its chain's transforms the first time, and otherwise as it is."""
        stage = self.stage
        transforms = stage.chains.get(chain, ()) if chain not in self.done else ()
        self.done.add(chain)
        self.seen.append(named)
        stage.found.add(named)
        try:
            is_video = is_instance(value, *_VIDEO)
            if not transforms and (is_video or isinstance(value, Image)):
                return value.decode()
            is_clip = is_video or getattr(value, "ndim", 0) == 4
            first, frames = value, iter(())
            if is_clip:
                frames = iter(value.decode_frames() if is_video else value)
                first = next(frames, None)
                if first is None:
                    raise SampleError(f"expected a clip of one frame or more, got the shape {value.shape}")
            image = as_image(first)
            size = size_of(image)
            plans = make_plans(size, transforms, self.rng)
            self.planned[chain] = size, plans
            if is_clip or len(plans) > 1:
                return _make_stack(chained([image], frames), plans, is_clip=is_clip)
            [plan] = plans
            made_by = stage.staged.get(chain) if transforms else None
            if made_by is None:
                return finish_plan(image, plan)
            # Imported late, because it loads the kernels.
            from gpuloader.transforms.image_staging import stage_encoded, stage_image

            if stage.encoded:
                return stage_encoded(image, plan, made_by, self.key)
            return stage_image(image, plan, made_by)
        except SampleError as error:
            error.field = error.field or named
            raise
        except SourceError as error:  # a video is opened only here
            raise SampleError(str(error), field=named) from error


def _make_stack(frames: Iterable[Any], plans: Sequence[Plan], *, is_clip: bool) -> NDArray[np.uint8]:
    """Return the views of an image or a clip, one for each plan; or the clip alone."""
    if len(plans) > 1:  # each frame is decoded once for all views
        frames = [one.decode() if isinstance(one, Image) else as_image(one) for one in frames]
    views = []
    for plan in plans:
        made = [finish_plan(as_image(frame), plan) for frame in frames]
        views.append(np.stack(made) if is_clip else made[0])
    if len(shapes := {view.shape for view in views}) > 1:
        raise SampleError(
            f"expected views of one size, got the shapes {sorted(shapes)}; end with Resize or a crop"
        )
    return np.stack(views) if len(plans) > 1 else views[0]


def _put(value: Any, name: str, moved: Mapping[str, Any]) -> Any:
    """Return a value in which the fields that have moved are replaced."""
    if name in moved:
        return moved[name]
    if name and not any(one.startswith(f"{name}.") for one in moved):
        return value
    entries = entries_of(value) or []
    return with_entries(value, [_put(entry, join_name(name, key), moved) for key, entry in entries])
