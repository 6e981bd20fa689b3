"""Clips: every frame gets what one draw says, as if the clip were an image."""

import numpy as np
import pytest

import gpuloader.transforms as t
from gpuloader import DataLoader
from gpuloader.testing import simulated_places
from tests.picture_files import make_pixels

CLIPS = [np.stack([make_pixels(40, 50, seed=10 * clip + frame) for frame in range(3)]) for clip in range(4)]
PLACES = pytest.mark.parametrize("places", ["cpu", "gpu", "decoding gpu"])


def load(clips, places, *transforms):
    options = {"decode": "device"} if places == "decoding gpu" else {}
    places = places if places == "cpu" else simulated_places(1)
    loader = DataLoader(clips, places=places, batch_size=4, seed=2, transforms=transforms, **options)
    [batch] = loader
    return np.array(batch)


@PLACES
@pytest.mark.parametrize("finish", [[], [t.Normalize(None, 100, 50)]], ids=["bytes", "normalized"])
@pytest.mark.parametrize(
    "chain",
    [
        [t.RandomResizedCrop(None, 24), t.RandomFlip(None)],
        [t.Resize(None, 30), t.CenterCrop(None, 24)],
        [t.CenterCrop(None, 24), t.RandAugment(None), t.ColorJitter(None, 0.4)],
    ],
    ids=["random", "center", "augmented"],
)
def test_all_frames_of_a_clip_get_the_same_draw(chain, finish, places):
    got = load(CLIPS, places, *chain, *finish)
    assert got.shape == ((4, 3, 3, 24, 24) if finish else (4, 3, 24, 24, 3))
    for number in range(3):
        frames = load([clip[number] for clip in CLIPS], "cpu", *chain, *finish)
        np.testing.assert_array_equal(got[:, number], frames)


@PLACES
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize(
    ("to", "dtype"), [("HWC", "float32"), ("CHW", "float16"), ("channels_last", "float32")]
)
def test_windows_and_numbers_of_a_batch_of_clips(to, dtype, layout, places):
    turn = (lambda clip: clip) if layout == "HWC" else (lambda clip: clip.transpose(0, 3, 1, 2).copy())
    clips = list(map(turn, CLIPS))
    crop = t.RandomCropFlip(None, (20, 24), layout=layout)
    norm = t.Normalize(None, [90, 100, 110], 50, layout=layout, to=to, dtype=dtype)
    for transforms in ([crop], [norm], [crop, norm]):
        got = load(clips, places, *transforms)
        for number in range(3):
            frames = load([clip[number].copy() for clip in clips], "cpu", *transforms)
            np.testing.assert_array_equal(got[:, number], frames, strict=True)


def test_masks_follow_the_frames_of_their_clip():
    samples = [{"clip": clip, "mask": clip[..., 0]} for clip in CLIPS]
    fields = "clip", t.Mask("mask", stacked=True)
    steps = [t.RandomFlip(fields), t.CenterCrop(fields, 20)]
    [batch] = DataLoader(samples, places="cpu", batch_size=4, seed=1, transforms=steps)
    np.testing.assert_array_equal(batch["clip"][..., 0], batch["mask"])


def test_what_takes_images_alone_says_so():
    for transform in (t.RandomErasing(None, layout="HWC"), t.CutMix("0", "1", 2, layout="HWC")):
        samples = [(clip, 0) for clip in CLIPS]
        with pytest.raises(ValueError, match="expected images in layout HWC, got uint8 of shape"):
            list(DataLoader(samples, places="cpu", batch_size=4, transforms=[transform]))
    with pytest.raises(ValueError, match="move the channels last"):
        load([clip.transpose(0, 3, 1, 2) for clip in CLIPS], "cpu", t.Resize("0", 8))
