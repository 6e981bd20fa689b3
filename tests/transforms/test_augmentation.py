"""Random operations, which make what torchvision and Pillow make of the same arguments; and views."""

import numpy as np
import pytest

import gpuloader.transforms as t
from gpuloader import DataLoader
from gpuloader.sources.images.annotations import move_annotations
from gpuloader.sources.images.image import Affine, Geometry, Image, as_image
from gpuloader.testing import simulated_places
from gpuloader.transforms.augmentation import add_operation, make_space
from gpuloader.transforms.image_transforms import finish_plan
from tests.picture_files import encode, make_pixels, pillow, plan_image

SPACES = {
    "RandAugment": make_space(0.3, 150 / 331 * 40, 150 / 331 * 32, 30.0, 0.9, 4),
    "TrivialAugmentWide": make_space(0.99, 32.0, 32.0, 135.0, 0.99, 2),
}
NAMES = [*SPACES["RandAugment"]]
PIXELS = make_pixels(32, 40)


class Rng:
    """Draws what it was given, so that an operation is known."""

    def __init__(self, *numbers):
        self.numbers = iter(numbers)

    def random(self):
        return next(self.numbers)


def operate(kind, name, number, negative=False, pixels=PIXELS):
    """Return the plan of one operation, and its pixels."""
    plan = [Geometry.of(*pixels.shape[:2])]
    place = (NAMES.index(name) + 0.5) / len(NAMES)
    add_operation(plan, SPACES[kind], number, t.TrivialAugment(None), Rng(place, 0.2 if negative else 0.8))
    return plan, finish_plan(as_image(pixels), plan)


def with_pillow(image, name, amount):
    """Return what Pillow's own function for an operation makes."""
    from PIL import ImageEnhance, ImageOps

    if name in ("brightness", "saturation", "contrast", "sharpness"):
        kind = "Color" if name == "saturation" else name.title()
        return getattr(ImageEnhance, kind)(image).enhance(1 + amount)
    matrix = {"translate_x": (1, 0, -int(amount), 0, 1, 0), "translate_y": (1, 0, 0, 0, 1, -int(amount))}
    matrix |= {"shear_x": (1, amount, 0, 0, 1, 0), "shear_y": (1, 0, 0, amount, 1, 0)}
    if name in matrix:
        return image.transform(image.size, pillow.Transform.AFFINE, matrix[name])
    if name == "rotate":
        return image.rotate(amount)
    calls = {
        "identity": lambda: image,
        "posterize": lambda: ImageOps.posterize(image, round(amount)),
        "solarize": lambda: ImageOps.solarize(image, amount),
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
    }
    return calls[name]()


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", NAMES)
def test_each_operation_makes_pillows_pixels(name, kind, negative):
    first, last, is_signed = SPACES[kind][name]
    for number in (0, 7, 20, 30):
        amount = first + (last - first) * number / 30
        amount = -amount if is_signed and negative else amount
        _, got = operate(kind, name, number, negative)
        expected = np.asarray(with_pillow(pillow.fromarray(PIXELS), name, amount))
        # The angle of a slant is rounded on its way, so a pixel between two may fall to the other.
        assert (got != expected).mean() <= (0.01 if name.startswith("shear") else 0)


@pytest.mark.parametrize("kind", SPACES)
def test_operations_magnitudes_and_pixels_are_torchvisions(kind):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    theirs = getattr(v2, kind)()
    image = pillow.fromarray(PIXELS)
    words = {"saturation": "Color", "autocontrast": "AutoContrast"}
    names = [words.get(name) or name.title().replace("_", "") for name in NAMES]
    assert names == [*theirs._AUGMENTATION_SPACE]
    for name, called in zip(NAMES, names, strict=True):
        magnitudes, is_signed = theirs._AUGMENTATION_SPACE[called]
        found = magnitudes(31, 32, 40)
        for number in range(31):
            for negative in (False, True)[: 1 + is_signed]:
                amount = 0.0 if found is None else float(found[number])
                first, last, ours_signed = SPACES[kind][name]
                ours = first + (last - first) * number / 30
                scale = 255 if name == "solarize" else 1
                if found is not None:
                    close = 0.5 if name == "posterize" else 1e-4
                    assert abs(ours - amount * scale) <= close
                assert ours_signed == is_signed
                _, got = operate(kind, name, number, negative)
                ours = (-ours if negative else ours) / scale
                strength = round(ours) if name == "posterize" else ours
                how = strength, v2.InterpolationMode.NEAREST, theirs._fill
                expected = theirs._apply_image_or_video_transform(image, called, *how)
                np.testing.assert_array_equal(got, np.asarray(expected), err_msg=f"{name} {number}")


def test_gray_and_blur_are_pillows():
    from PIL import ImageFilter

    image = pillow.fromarray(PIXELS)
    [_, coloring] = plan_image((32, 40), [t.GaussianBlur(None, 1.3)], np.random.default_rng(0))
    assert coloring.steps == (("blur", 1.3),)
    for step, expected in (
        (t.Grayscale(None), image.convert("L").convert("RGB")),
        (t.GaussianBlur(None, 1.3), image.filter(ImageFilter.GaussianBlur(1.3))),
    ):
        got = finish_plan(as_image(PIXELS), plan_image((32, 40), [step], np.random.default_rng(0)))
        np.testing.assert_array_equal(got, np.asarray(expected))
    gray = PIXELS[..., :1]
    for step in (t.Grayscale(None), t.RandAugment(None, 8)):
        for seed in range(9):
            got = finish_plan(as_image(gray), plan_image((32, 40), [step], np.random.default_rng(seed)))
            assert got.shape == gray.shape


def test_what_is_drawn_has_the_probabilities_and_the_range():
    rng = np.random.default_rng(0)
    steps = [t.Grayscale(None, 0.2), t.GaussianBlur(None, p=0.5), t.ColorJitter(None, 0.4, p=0.8)]
    steps += [t.RandAugment(None, 3), t.TrivialAugment(None)]
    gray, blur, jitter, rand, trivial = (
        [plan_image((8, 8), [step], rng)[1:] for _ in range(400)] for step in steps
    )
    for plans, p in ((gray, 0.2), (blur, 0.5), (jitter, 0.8)):
        assert abs(sum(map(bool, plans)) / 400 - p) < 0.08
    radii = [plan[0].steps[0][1] for plan in blur if plan]
    assert 0.1 <= min(radii) < 0.3 < 1.8 < max(radii) <= 2
    assert {len(plan) for plan in rand} == {3}
    assert {len(plan) for plan in trivial} == {1}
    assert len({str(plan) for plan in trivial}) > 150
    kinds = [plan[0].steps[0][0] for plan in trivial if not isinstance(plan[0], Affine)]
    assert len({*kinds}) == len(NAMES) - 5
    assert abs(len(kinds) / 400 - 9 / 14) < 0.1


def test_masks_and_boxes_follow_an_operation():
    mask = np.zeros((32, 40), np.uint8)
    mask[10:16, 12:20] = 255
    fields = t.Mask("mask"), t.Boxes("boxes")
    for name in ("shear_x", "shear_y", "translate_x", "translate_y", "rotate"):
        plan, got = operate("RandAugment", name, 12, pixels=mask[..., None])
        moved = move_annotations(fields, {"mask": mask, "boxes": [[12, 10, 20, 16]]}, (32, 40), plan[1:])
        np.testing.assert_array_equal(moved["mask"], got[..., 0])
        rows, columns = got[..., 0].nonzero()
        found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(moved["boxes"][0], found, atol=1.5)


# ---------------------------------------------------------------------------------------------------------
# Views

STEPS = [t.RandomResizedCrop("image", 24), t.RandomFlip("image")]
STEPS += [t.TrivialAugment("image"), t.Grayscale("image", 0.3)]
SAMPLES = [{"image": encode(make_pixels(40, 50, seed=n), "PNG"), "label": n} for n in range(6)]


def load(transforms, samples=SAMPLES, places="cpu", **options):
    loader = DataLoader(samples, places=places, batch_size=3, seed=5, transforms=transforms, **options)
    return [{name: np.array(one) for name, one in batch.items()} for batch in loader]


def test_views_are_drawn_one_by_one_from_an_image_that_is_decoded_once(monkeypatch):
    decoded, decode = [], Image.decode
    monkeypatch.setattr(Image, "decode", lambda image: decoded.append(image) or decode(image))
    batches = load([t.Views(2, STEPS)])
    assert len(decoded) == len(SAMPLES)
    assert [batch["image"].shape for batch in batches] == [(3, 2, 24, 24, 3)] * 2
    assert all((views[0] != views[1]).any() for batch in batches for views in batch["image"])
    # The first view is what the same transforms make without a second one.
    for batch, alone in zip(batches, load(STEPS), strict=True):
        np.testing.assert_array_equal(batch["image"][:, 0], alone["image"])


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"places": simulated_places(1)}], ids=["workers", "gpu"]
)
@pytest.mark.parametrize(
    "norm", [[], [t.Normalize("image", 0.5, 0.2, scale=1 / 255)]], ids=["bytes", "normalized"]
)
def test_views_are_the_same_everywhere(options, norm):
    expected = load([t.Views(3, STEPS), *norm])
    assert expected[0]["image"].shape == ((3, 3, 3, 24, 24) if norm else (3, 3, 24, 24, 3))
    for batch, there in zip(expected, load([t.Views(3, STEPS), *norm], **options), strict=True):
        np.testing.assert_array_equal(batch["image"], there["image"], strict=True)


def test_what_moves_along_gets_the_dimension_of_the_views():
    pixels = make_pixels(40, 50)
    samples = [{"image": pixels, "mask": pixels[..., 0]}]
    both = ("image", "mask")
    [batch] = load([t.Views(2, [t.CenterCrop(both, 30), t.RandomFlip(both)])], samples)
    np.testing.assert_array_equal(batch["mask"], batch["image"][..., 0])
    alone = [make_pixels(40, 50)] * 3
    [batch] = DataLoader(alone, places="cpu", batch_size=3, transforms=[t.Views(2, [t.Resize(None, (8, 9))])])
    assert batch.shape == (3, 2, 8, 9, 3)


def test_views_of_several_sizes_are_refused():
    samples = [{"image": make_pixels(60, 40)}]
    turn = [t.CenterCrop("image", 60), t.PadImage("image", 1)]

    class Odd:
        field, done = "image", 0

        def extend(self, plan, rng):
            Odd.done += 1
            t.CenterCrop("image", Odd.done).extend(plan, rng)

    load([t.Views(2, turn)], samples)
    with pytest.raises(ValueError, match=r"views of one size, got the shapes \[\(1, 1, 3\), \(2, 2, 3\)\]"):
        load([t.Views(2, [Odd()])], samples)


def test_damaged_files_are_left_out_of_views():
    samples = [*SAMPLES[:2], {"image": SAMPLES[2]["image"][:99], "label": 2}]
    [batch] = load([t.Views(2, STEPS)], samples, on_bad="skip")
    assert batch["label"].tolist() == [0, 1]
