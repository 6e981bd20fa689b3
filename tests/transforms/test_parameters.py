"""Parameters of transforms that make no sense: each is refused where the transform is made."""

from dataclasses import dataclass

import pytest

import gpuloader.transforms as t

STEPS = [t.RandomFlip("image")]
VALUES = [
    (lambda: t.Resize(None, 0), "size must be"),
    (lambda: t.Resize(None, (1, 2, 3)), r"size must be a number or \(height, width\)"),
    (lambda: t.Resize(None, 8, filter="nearest"), "filter must be one of 'bilinear', 'bicubic', got"),
    (lambda: t.RandomResizedCrop(None, 8, scale=(0.5, 0.1)), "scale must be .* at most 1"),
    (lambda: t.RandomResizedCrop(None, 8, scale=0.5), "scale must be a pair of numbers"),
    (lambda: t.RandomResizedCrop(None, 8, ratio=(0, 1)), "ratio must be .* above 0"),
    (lambda: t.RandomFlip(None, p=2), "p must be a probability from 0 to 1, got 2"),
    (lambda: t.RandomFlip(None, axis="x"), "axis must be one of"),
    (lambda: t.ColorJitter(None, hue=0.6), "hue must rise and lie between -0.5 and 0.5"),
    (lambda: t.ColorJitter(None, brightness=-1), "brightness must be a number of 0 or more"),
    (lambda: t.ColorJitter(None, p=2), "p must be"),
    (lambda: t.Grayscale(None, 2), "p must be"),
    (lambda: t.GaussianBlur(None, 0), "sigma must be"),
    (lambda: t.GaussianBlur(None, p=-1), "p must be"),
    (lambda: t.RandAugment(None, 0), "num_ops must be"),
    (lambda: t.RandAugment(None, magnitude=31), "magnitude must be a number from 0 to 30, got 31"),
    (lambda: t.RandAugment(None, filter="lanczos"), "filter must be one of"),
    (lambda: t.TrivialAugment(None, 1), "num_magnitude_bins must be 2 or more"),
    (lambda: t.RandomErasing("0", value="random"), "value must be a number"),
    (lambda: t.RandomErasing("0", scale=(0.5, 2)), "scale must be .* at most 1"),
    (lambda: t.MixUp("0", "1", 0), "classes"),
    (lambda: t.CutMix("0", "1", 4, alpha=0), "alpha must be a number above 0, got 0"),
    (lambda: t.CutMix("0", "1", 4, layout="NCHW"), "layout must be one of 'HWC', 'CHW'"),
    (lambda: t.Views(1, STEPS), "views must be 2 or more"),
    (lambda: t.Views(2, [*STEPS, t.Resize("photo", 8)]), "of one field, got 'image' and 'photo'"),
    (lambda: t.Views(2, [t.RandomFlip(("image", t.Boxes("boxes", "label")))]), r"\['boxes', 'label'\]"),
    (lambda: t.Boxes("x", format="yxyx"), "format"),
    (lambda: t.Boxes("x", min_visible=2), "min_visible"),
    (lambda: t.Boxes("x", min_area=-1), "min_area"),
    (lambda: t.Keypoints("x", mirrored=(0, 2)), "mirrored"),
    (lambda: t.RandomFlip(("image", "mask", "mask")), "'mask' is named twice"),
    (lambda: t.Keypoints("x", mirrored=3), "mirrored must have .* got 3"),
    (lambda: t.PadImage("image", (1, 2)), "padding"),
    (lambda: t.PadImage("image", -1), "padding"),
    (lambda: t.RandomAffine("image", 400), "degrees"),
    (lambda: t.RandomAffine("image", shear=(5, 1)), "shear"),
    (lambda: t.RandomAffine("image", translate=(0, 2)), "translate"),
    (lambda: t.RandomAffine("image", translate=3), "translate must be two parts from 0 to 1, got 3"),
    (lambda: t.RandomAffine("image", translate="ab"), "translate must be two parts from 0 to 1, got 'ab'"),
    (lambda: t.RandomAffine("image", scale=(0, 1)), "scale"),
    (lambda: t.RandomCropFlip("0", 4), "window size must be .height, width., got 4"),
    (lambda: t.RandomCropFlip("0", (4, 4), layout="WHC"), "layout must be one of 'HWC'"),
    (lambda: t.RandomCropFlip("0", (4, 0)), "width must be an integer of 1 or more, got 0"),
    (lambda: t.Normalize("0", crop=(4,)), "window size must be"),
    (lambda: t.Normalize("0", layout="WHC"), "layout must be one of .* got 'WHC'"),
    (lambda: t.Normalize("0", to="C"), "to must be"),
    (lambda: t.Normalize("0", std=(0.5, 0, 0.5)), "std must be finite and not 0"),
    (lambda: t.Normalize("0", mean=float("nan")), "mean must be finite, got nan"),
    (lambda: t.Normalize("0", scale=(1, 2, 3)), "scale must be one number"),
    (lambda: t.OneHot("0", 0), "classes must be an integer of 1 or more, got 0"),
    (lambda: t.Pad("0", -1), "length must be an integer of 1 or more, got -1"),
]
TYPES = [
    (lambda: t.Views(2, []), "single images, got none"),
    (lambda: t.Views(2, t.RandomFlip(None)), "needs a list of transforms, got RandomFlip"),
    (lambda: t.Views(2, [*STEPS, t.Normalize("image")]), "got Normalize; put it after Views"),
    (lambda: t.Normalize("0", dtype="int8"), "dtype must be one of float16"),
    (lambda: t.Normalize("0", mean="grey"), "mean must be a number, got 'grey'"),
    (lambda: t.OneHot("0", 3, "text"), "dtype must be one of"),
    (lambda: t.Normalize("0", flip="x"), "flip must be True or False, got 'x'"),
    (lambda: t.RandomCropFlip("0", (4, 4), flip="x"), "flip must be True or False, got 'x'"),
    (lambda: t.Resize(None, 8, scaled="x"), "scaled must be True or False, got 'x'"),
    (lambda: t.RandomResizedCrop(None, 8, scaled="x"), "scaled must be True or False, got 'x'"),
    (lambda: t.RandAugment(None, magnitude="x"), "magnitude must be a number, got 'x'"),
    (lambda: t.Pad("0", 4, fill="x"), "fill must be a number, got 'x'"),
    (lambda: t.Mask("x", fill="x"), "fill must be a number, got 'x'"),
    (lambda: t.Mask("x", stacked="x"), "stacked must be True or False, got 'x'"),
    (lambda: t.Boxes("x", fractions="x"), "fractions must be True or False, got 'x'"),
    (lambda: t.Boxes("x", min_area="x"), "min_area must be a number, got 'x'"),
    (lambda: t.Boxes("x", min_visible="x"), "min_visible must be a number, got 'x'"),
    (lambda: t.Keypoints("x", drop="x"), "drop must be True or False, got 'x'"),
    (lambda: t.Cast("0"), r"Cast needs the dtype .* Cast\(dtype='int64'\)"),
    (lambda: t.Cast("0", "float32", scale="half"), "scale must be a number or None, got"),
    (lambda: t.Cast("0", "complex64"), "dtype must be one of"),
    (lambda: t.Cast("0", "bool"), "dtype must be one of"),
]


@pytest.mark.parametrize(("make", "problem"), VALUES)
def test_a_value_that_makes_no_sense_is_refused(make, problem):
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize(("make", "problem"), TYPES)
def test_something_of_another_type_is_refused(make, problem):
    with pytest.raises(TypeError, match=problem):
        make()


@dataclass(frozen=True)
class Square(t.Resize):
    size: int = 224


@dataclass(frozen=True)
class Always(t.RandomFlip):
    p: float = 7.0


def test_a_subclass_with_another_default_is_checked_too():
    assert Square("image").size == 224
    with pytest.raises(ValueError, match="size must be an integer of 1 or more, got -5"):
        Square("image", -5)
    with pytest.raises(ValueError, match=r"p must be a probability from 0 to 1, got 7\.0"):
        Always("image")
