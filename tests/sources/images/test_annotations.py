"""Masks, boxes and keypoints move as their pictures do, by the judgment of Pillow and torchvision."""

import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.errors import DecodeError, SampleError
from gpuloader.sources.images.annotations import move_annotations
from gpuloader.sources.images.image import Affine, Geometry, Image, as_image
from gpuloader.transforms import (
    Boxes,
    CenterCrop,
    Keypoints,
    Mask,
    PadImage,
    RandomAffine,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)
from gpuloader.transforms.image_transforms import draw_window, finish_plan
from tests.picture_files import encode, make_pixels, pillow, plan_image, turned

NEAREST = pillow.Resampling.NEAREST

SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90))
CHAINS = st.lists(
    st.one_of(
        st.builds(RandomResizedCrop, st.none(), SIZES),
        st.builds(Resize, st.none(), SIZES),
        st.builds(CenterCrop, st.none(), SIZES),
        st.builds(RandomFlip, st.none(), axis=st.sampled_from(["horizontal", "vertical"])),
        st.builds(PadImage, st.none(), st.tuples(*[st.integers(0, 9)] * 4)),
        st.builds(
            RandomAffine,
            st.none(),
            st.floats(0, 180),
            st.just((0.2, 0.1)),
            st.just((0.5, 2)),
            st.floats(0, 30),
        ),
    ),
    min_size=1,
    max_size=4,
)


def steps_of(size, transforms, seed=0):
    return plan_image(size, transforms, np.random.default_rng(seed))


def moved(annotation, value, size, *transforms, seed=0, **labels):
    values = {annotation.field: value, **labels}
    return move_annotations([annotation], values, size, steps_of(size, transforms, seed))


def by_pillow(mask, steps, fill):
    """Return what Pillow makes of a mask by the steps, each by a function of its own."""
    image = pillow.fromarray(mask)
    for step in steps:
        if isinstance(step, Affine):
            size = image.size
            image = image.transform(size, pillow.Transform.AFFINE, step.matrix, NEAREST, fillcolor=fill)
            continue
        height, width = step.size
        image = image.resize((width, height), NEAREST, step.box)
        top, left, tall, wide = step.window
        framed = pillow.new(image.mode, (wide, tall), fill)
        framed.paste(image, (-left, -top))
        image = framed.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if step.flip else framed
        image = image.transpose(pillow.Transpose.FLIP_TOP_BOTTOM) if step.flop else image
    return np.asarray(image)


@given(SIZES, CHAINS, st.integers(0, 2**32), st.sampled_from([np.uint8, np.int32, np.float32]))
def test_a_mask_has_the_values_that_pillow_picks(size, chain, seed, dtype):
    mask = np.random.default_rng(seed).integers(0, 250, size).astype(dtype)
    steps = steps_of(size, chain, seed)
    got = move_annotations([Mask("mask", fill=255)], {"mask": mask}, size, steps)["mask"]
    expected = by_pillow(mask, steps, 255)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)


@given(SIZES, CHAINS, st.integers(0, 2**32), st.sampled_from(["PNG", "TIFF"]), st.sampled_from("LP1"))
def test_an_encoded_mask_has_them_too(size, chain, seed, form, mode):
    mask = np.random.default_rng(seed).integers(0, 250, size).astype(np.uint8)
    image = pillow.fromarray(mask).convert(mode)
    steps = steps_of(size, chain, seed)
    got = move_annotations([Mask("mask")], {"mask": encode(image, form)}, size, steps)["mask"]
    np.testing.assert_array_equal(got, move_annotations([Mask("mask")], {"mask": image}, size, steps)["mask"])


def test_a_mask_cut_off_below_what_is_needed_is_refused():
    data = encode(np.random.default_rng(0).integers(0, 9, (90, 60)).astype(np.uint8), "PNG")
    assert moved(Mask("mask"), data, (90, 60), CenterCrop(None, 8))["mask"].shape == (8, 8)
    for length in range(len(data) // 2, len(data) - 50, 50):
        with pytest.raises(DecodeError):
            moved(Mask("mask"), data[:length], (90, 60), CenterCrop(None, 8))


@given(SIZES, CHAINS, st.integers(0, 2**32))
def test_a_mask_lies_where_its_picture_lies(size, chain, seed):
    """Where nothing is interpolated, mask and picture are the same pixels; elsewhere, of the same size."""
    chain = [one for one in chain if not isinstance(one, Resize | RandomResizedCrop)]
    chain = [
        RandomAffine(None, one.degrees, filter="nearest") if isinstance(one, RandomAffine) else one
        for one in chain
    ]
    pixels = make_pixels(*size, seed=seed % 1000)
    steps = steps_of(size, chain, seed)
    image = finish_plan(as_image(pixels), list(steps))
    got = move_annotations([Mask("mask")], {"mask": pixels}, size, steps)["mask"]
    np.testing.assert_array_equal(got, image)


@pytest.mark.parametrize(
    "transform", [RandomAffine(None, 40, (0.1, 0.1), (0.7, 1.4), 20), RandomResizedCrop(None, (60, 90))]
)
@pytest.mark.parametrize("seed", range(8))
def test_a_box_encloses_what_lay_within_it(transform, seed):
    size, rng = (120, 150), np.random.default_rng(seed)
    low = rng.integers(0, (100, 70), (6, 2))
    boxes = np.concatenate([low, low + rng.integers(10, 40, (6, 2))], 1)
    masks = np.zeros((6, *size), bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes, strict=True):
        mask[top:bottom, left:right] = True
    annotations = Boxes("boxes", ("masks", "number")), Mask("masks", stacked=True)
    values = {"boxes": boxes, "masks": masks, "number": np.arange(6)}
    got = move_annotations(annotations, values, size, steps_of(size, [transform], seed))
    assert len(got["boxes"]) == len(got["masks"]) == len(got["number"])
    for box, mask in zip(got["boxes"], got["masks"], strict=True):
        rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
        found = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        # A turned box that is cut off is that around all its corners: larger than what is seen.
        height, width = mask.shape
        is_whole = box[:2].min() > 0 and box[2] < width and box[3] < height
        if is_whole or isinstance(transform, RandomResizedCrop):
            np.testing.assert_allclose(box, found, atol=2.5)
        assert ((found - box) * [1, 1, -1, -1] > -2.5).all()


def test_boxes_of_all_formats_are_the_same_boxes():
    size, crop = (100, 200), RandomResizedCrop(None, (50, 80), scale=(0.4, 1))
    corners = np.array([[10.0, 20, 90, 80], [100, 10, 180, 60]])
    left, top, right, bottom = corners.T
    forms = {
        "xyxy": corners,
        "xywh": np.stack([left, top, right - left, bottom - top], 1),
        "cxcywh": np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], 1),
    }
    expected = moved(Boxes("boxes"), corners, size, crop, seed=2)["boxes"]
    assert len(expected) == 2
    for form, boxes in forms.items():
        for fractions in (False, True):
            one = Boxes("boxes", format=form, fractions=fractions)
            made = moved(one, boxes / ([200, 100, 200, 100] if fractions else 1), size, crop, seed=2)
            np.testing.assert_allclose(one.read(made["boxes"], (50, 80)), expected, atol=1e-4)


def test_boxes_left_with_too_little_go_with_their_labels():
    boxes = [[0, 0, 10, 10], [8, 0, 28, 10], [12, 2, 14, 3], [30, 0, 40, 10]]
    crop = CenterCrop(None, (10, 20))  # of 40 columns, those from 10 to 30
    labels = {"labels": [5, 6, 7, 8], "names": np.array(list("abcd"))}
    annotation = ("boxes", ("labels", "names"))
    left = moved(Boxes(*annotation), boxes, (10, 40), crop, **labels)
    assert left["boxes"].tolist() == [[0, 0, 18, 10], [2, 2, 4, 3]]
    assert (left["labels"].tolist(), left["names"].tolist()) == ([6, 7], ["b", "c"])
    assert left["boxes"].dtype == np.float32
    assert moved(Boxes(*annotation, min_area=3), boxes, (10, 40), crop, **labels)["labels"].tolist() == [6]
    for visible, expected in ((0.9, [6, 7]), (0.95, [7])):
        rule = Boxes(*annotation, min_visible=visible)
        assert moved(rule, boxes, (10, 40), crop, **labels)["labels"].tolist() == expected
    assert moved(Boxes("boxes"), np.float64(boxes), (10, 40), crop)["boxes"].dtype == np.float64


def test_a_margin_hides_what_was_cut_off():
    """The rest of a picture does not come back in a margin, nor do its boxes."""
    pixels, chain = make_pixels(20, 20), [CenterCrop(None, 10), PadImage(None, 3), CenterCrop(None, 20)]
    steps = steps_of((20, 20), chain)
    expected = np.zeros((20, 20, 3), np.uint8)
    expected[5:15, 5:15] = pixels[5:15, 5:15]
    np.testing.assert_array_equal(finish_plan(as_image(pixels), list(steps)), expected)
    got = moved(Boxes("boxes"), [[0, 0, 20, 20], [0, 0, 4, 4]], (20, 20), *chain)
    assert got["boxes"].tolist() == [[5, 5, 15, 15]]


def test_keypoints():
    points = np.float32([[2, 3], [30, 4], [35, 5]])
    crop, flip = CenterCrop(None, (10, 20)), RandomFlip(None, p=1)
    chain = [CenterCrop(None, (10, 36)), flip]  # of 40 columns, those from 2 to 38
    got = moved(Keypoints("pose", mirrored=(1, 0, 2)), points, (10, 40), *chain)["pose"]
    assert got.tolist() == [[8, 4], [36, 3], [3, 5]]
    seen = np.concatenate([points, [[2], [1], [0]]], 1)
    got = moved(Keypoints("pose"), [seen, seen], (10, 40), crop)["pose"]  # the columns from 10 to 30
    assert got.tolist() == [[[0, 0, 0], [20, 4, 1], [0, 0, 0]]] * 2
    dropped = moved(Keypoints("pose", "name", drop=True), points, (10, 40), crop, name=[7, 8, 9])
    assert (dropped["pose"].tolist(), dropped["name"].tolist()) == ([[20, 4]], [8])
    part = moved(Keypoints("pose", fractions=True), points / [40, 10], (10, 40), crop)["pose"]
    np.testing.assert_allclose(part, (points - [10, 0]) / [20, 10], atol=1e-6)


def test_points_turn_with_their_picture():
    pixels = np.zeros((81, 101), np.uint8)
    pixels[30:33, 70:73] = 255
    for seed in range(5):
        turn = RandomAffine(None, 60, (0.05, 0.05), (0.9, 1.1), 10)
        steps = steps_of(pixels.shape, [turn], seed)
        image = finish_plan(as_image(pixels), list(steps))[..., 0].astype(float)
        rows, columns = np.mgrid[:81, :101] + 0.5
        center = (columns * image).sum() / image.sum(), (rows * image).sum() / image.sum()
        got = move_annotations([Keypoints("at")], {"at": [[71.5, 31.5]]}, pixels.shape, steps)["at"]
        np.testing.assert_allclose(got[0], center, atol=0.1)


@pytest.mark.parametrize("mode", ["P", "L", "1", "I;16", "RGB"])
def test_masks_are_read_as_they_are_stored(mode):
    rng = np.random.default_rng(1)
    if mode == "P":
        image = pillow.fromarray(rng.integers(0, 5, (6, 8), np.uint8)).convert("P")
        image.putpalette(rng.integers(0, 256, 768, np.uint8).tobytes())
    elif mode == "I;16":
        image = pillow.fromarray(rng.integers(0, 5000, (6, 8)).astype(np.uint16))
    else:
        image = pillow.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).convert(mode)
    expected = np.asarray(image)
    data = encode(image, "PNG")
    for value in (image, data, Image(data), {"bytes": data, "path": None}):
        got = moved(Mask("mask"), value, (6, 8), RandomFlip(None, p=1))["mask"]
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected[:, ::-1])
        for chain in ([Resize(None, (9, 5))], [RandomResizedCrop(None, 4), PadImage(None, 1)]):
            got, array = (
                moved(Mask("mask", fill=1), one, (6, 8), *chain)["mask"] for one in (value, expected)
            )
            np.testing.assert_array_equal(got, array, strict=True)
            assert got.flags.writeable


def test_a_mask_turns_upright_with_its_picture():
    data = encode(np.uint8([[1, 2, 3], [4, 5, 6]]), "PNG", **turned(6))
    got = moved(Mask("mask"), Image(data, upright=True), (3, 2))["mask"]
    assert got.tolist() == [[4, 1], [5, 2], [6, 3]]
    top = [Geometry.of(3, 2).cut(0, 0, 1, 2)]
    data = encode(np.uint8([[1, 2], [3, 4], [5, 6]]), "PNG", **turned(3))
    got = move_annotations([Mask("mask")], {"mask": Image(data, upright=True)}, (3, 2), top)
    assert got["mask"].tolist() == [[6, 5]]


def test_an_interlaced_mask_is_decoded_whole():
    """Its first rows are stored in seven passes over the whole image."""
    mask = np.random.default_rng(0).integers(0, 250, (16, 16)).astype(np.uint8)
    passes = [
        (0, 8, 0, 8),
        (0, 8, 4, 8),
        (4, 8, 0, 4),
        (0, 4, 2, 4),
        (2, 4, 0, 2),
        (0, 2, 1, 2),
        (1, 2, 0, 1),
    ]
    rows = [row for y, down, x, across in passes for row in mask[y::down, x::across]]
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    header = struct.pack(">IIBBBBB", 16, 16, 8, 0, 0, 0, 1)
    chunks = [(b"IHDR", header), (b"IDAT", body), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n"
    for kind, part in chunks:
        data += struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
    got = move_annotations([Mask("mask")], {"mask": data}, (16, 16), [Geometry.of(16, 16).cut(0, 0, 5, 16)])
    np.testing.assert_array_equal(got["mask"], mask[:5])


BOX = [[1, 1, 5, 5]]


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (Mask("x"), np.zeros((4, 6), np.uint8), r"a mask of 8 x 6 pixels, .* got the shape \(4, 6\)"),
        (Mask("x"), np.zeros((2, 4)), r"if these are boxes, pass Boxes\('x'\)"),
        (Mask("x"), np.zeros(6), r"got the shape \(6,\)"),
        (Mask("x"), "mask.png", "expected a mask: an array, or a Pillow or encoded image, got str"),
        (Mask("x"), np.full((8, 6), "a"), "expected a mask of numbers"),
        (Mask("x", fill=300), np.zeros((8, 6), np.uint8), "the fill 300 does not fit a mask of uint8"),
        (Mask("x", stacked=True), np.zeros((8, 6)), r"expected masks of shape \(n, height, width\) of 8 x 6"),
        (Boxes("x"), [[1, 1, 20, 5]], r"within the image of 8 x 6 pixels, .* got \[1, 1, 20, 5\] as box 0"),
        (Boxes("x"), [*BOX, [3, 3, 2, 5]], "as box 1"),
        (Boxes("x", format="xywh", fractions=True), [[0.5, 0.5, 0.9, 0.1]], "'xywh' of fractions"),
        (Boxes("x"), [1, 2, 3, 4], r"expected boxes of shape \(n, 4\), got \(4,\)"),
        (Boxes("x"), np.zeros((2, 5)), r"got \(2, 5\)"),
        (Boxes("x"), [[0, 0, math.nan, 1]], "expected finite numbers, got nan in boxes"),
        (Boxes("x"), ["a"], "expected boxes as numbers, got list"),
        (Keypoints("x"), np.zeros((2, 4)), r"expected points of shape \(n, 2 or 3\)"),
        (Keypoints("x", drop=True), np.zeros((2, 4, 2)), "expected points of shape"),
        (Keypoints("x", mirrored=(1, 0)), np.zeros((3, 2)), "expected 2 points, as mirrored has, got 3"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_the_picture_are_refused(annotation, value, problem):
    with pytest.raises(SampleError, match=problem) as caught:
        moved(annotation, value, (8, 6), PadImage(None, 1), RandomFlip(None, p=1))
    assert caught.value.field == "x"


def test_labels_must_be_as_many_as_their_boxes_and_a_damaged_mask_is_named():
    with pytest.raises(SampleError, match="expected one entry for each of the 1 of 'x', got 2") as caught:
        moved(Boxes("x", "y"), BOX, (8, 6), y=[1, 2])
    assert caught.value.field == "y"
    with pytest.raises(SampleError, match="got a single value"):
        moved(Boxes("x", "y"), BOX, (8, 6), y=1)
    data = encode(make_pixels(8, 6), "PNG")
    with pytest.raises(DecodeError, match=r"mask\.png") as caught:
        moved(Mask("mask"), Image(data[: len(data) // 2], "mask.png"), (8, 6))
    assert caught.value.field == "mask"


@pytest.mark.parametrize("field", [["image", "mask"], (Boxes("boxes"), "image"), ("image", 3), ()], ids=str)
def test_fields_that_are_none_are_refused(field):
    with pytest.raises(TypeError, match="expected the name"):
        RandomFlip(field)


# ---------------------------------------------------------------------------------------------------------
# torchvision


@given(st.tuples(st.integers(20, 90), st.integers(20, 90)), SIZES, st.integers(0, 2**32), st.booleans())
def test_windows_move_boxes_and_masks_as_torchvision_does(size, target, seed, flips):
    pytest.importorskip("torchvision")
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F  # noqa: N812

    rng = np.random.default_rng(seed)
    boxes = np.sort(rng.random((5, 2, 2)), 1).reshape(5, 4) * ([size[1], size[0]] * 2)
    mask = rng.integers(0, 9, size).astype(np.uint8)
    crop = RandomResizedCrop(None, target)
    window = draw_window(*size, crop.scale, crop.ratio, np.random.default_rng(seed))
    theirs = tv_tensors.BoundingBoxes(torch.tensor(boxes), format="XYXY", canvas_size=size)
    theirs = F.resized_crop(theirs, *window, list(target))
    picked = F.resized_crop(torch.tensor(mask)[None], *window, list(target), InterpolationMode.NEAREST_EXACT)
    if flips:
        theirs, picked = F.horizontal_flip(theirs), F.horizontal_flip(picked)
    steps = steps_of(size, [crop, RandomFlip(None, p=float(flips))], seed)
    annotations = Boxes("boxes", "number", min_area=0), Mask("mask")
    values = {"boxes": boxes, "number": np.arange(5), "mask": mask}
    ours = move_annotations(annotations, values, size, steps)
    kept = ours["number"]
    np.testing.assert_allclose(ours["boxes"], theirs.numpy()[kept], atol=1e-4)
    width, height = (theirs[:, 2:] - theirs[:, :2]).numpy().T
    assert ((width * height)[[n for n in range(5) if n not in kept]] < 1e-9).all()
    # Where the middle of a pixel falls between two, torch rounds otherwise than Pillow now and then.
    rows, columns = (
        abs((np.arange(wanted) + 0.5) * side / wanted % 1 - 0.5) < 0.499
        for wanted, side in zip(target, window[2:], strict=True)
    )
    columns = columns[::-1] if flips else columns
    np.testing.assert_array_equal(ours["mask"][rows][:, columns], picked[0].numpy()[rows][:, columns])


@given(st.tuples(st.integers(20, 90), st.integers(20, 90)), st.integers(0, 2**32))
def test_turns_are_those_of_torchvision(size, seed):
    pytest.importorskip("torchvision")
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F  # noqa: N812

    rng = np.random.default_rng(seed)
    boxes = np.sort(rng.random((5, 2, 2)), 1).reshape(5, 4) * ([size[1], size[0]] * 2)
    low, right, down, scale, shear = np.random.default_rng(seed).random(5)
    angle, shear, scale = 80 * low - 40, 40 * shear - 20, 0.5 + 1.5 * scale
    move = [round((2 * part - 1) * 0.2 * side) for part, side in ((right, size[1]), (down, size[0]))]
    arguments = angle, move, scale, [shear, 0.0]
    pixels = make_pixels(*size, seed=seed % 1000)
    steps = steps_of(size, [RandomAffine(None, 40, (0.2, 0.2), (0.5, 2.0), 20)], seed)
    image = F.affine(pillow.fromarray(pixels), *arguments, interpolation=InterpolationMode.BILINEAR)
    different = np.asarray(image) != finish_plan(as_image(pixels), list(steps))
    assert different.mean() < 0.01
    theirs = tv_tensors.BoundingBoxes(torch.tensor(boxes), format="XYXY", canvas_size=size)
    theirs = F.affine(theirs, *arguments)
    ours = move_annotations(
        [Boxes("boxes", "number", min_area=0)], {"boxes": boxes, "number": np.arange(5)}, size, steps
    )
    np.testing.assert_allclose(ours["boxes"], theirs.numpy()[ours["number"]], atol=1e-4)


def test_the_first_step_of_a_plan_is_the_pictures_own():
    assert steps_of((4, 6), []) == [Geometry.of(4, 6)]
