"""`show` draws what a batch holds, and says what is wrong with what it cannot draw."""

import warnings

import numpy as np
import pytest

from gpuloader import DataLoader, Ragged, show
from gpuloader.transforms import Boxes, Keypoints, Mask
from tests.picture_files import make_pixels

pytest.importorskip("PIL")

FOUR = np.stack([make_pixels(8, 9, seed=number) for number in range(4)])


def first_image(drawn):
    """The pixels of the first of images of 8 x 9."""
    return np.asarray(drawn)[4:12, 4:13]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float32"])
def test_tensors_of_all_float_dtypes_are_drawn(dtype):
    torch = pytest.importorskip("torch")
    images = torch.linspace(0, 1, 4 * 3 * 8 * 9).reshape(4, 3, 8, 9)
    labels = torch.arange(4).to(torch.bfloat16)
    drawn = show((images.to(getattr(torch, dtype)).requires_grad_(), labels), columns=2)
    close = 0 if dtype == "float32" else 16
    assert abs(np.asarray(drawn).astype(int) - np.asarray(show((images, range(4)), columns=2))).max() <= close


def test_nan_is_black_without_a_warning():
    images = np.full((2, 8, 9, 1), 0.25, np.float32)
    images[0, 0] = np.nan
    images[0, 1], images[0, 2], images[0, 3] = 1, np.inf, -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = first_image(show(images))[:5, 0, 0]
        nothing = first_image(show(np.full((1, 8, 9, 3), np.nan)))
    np.testing.assert_array_equal(rows, [0, 255, 255, 0, 0])
    assert not nothing.any()


@pytest.mark.parametrize(
    ("labels", "options", "problem"),
    [
        (range(3), {}, "expected one label per image, got 4 images and 3 labels"),
        (3, {}, "got 4 images and a single label"),
        (range(4), {"classes": ["cat", "dog"]}, "label 2 has no name: classes has 2 names"),
        *(
            (range(4), {"columns": columns}, "columns must be an integer of 1 or more, got")
            for columns in (0, -1, "a", 1.5, True)
        ),
    ],
)
def test_what_does_not_fit_is_an_error(labels, options, problem):
    with pytest.raises(ValueError, match=problem):
        show((FOUR, labels), **options)


@pytest.mark.parametrize("batch", [None, DataLoader(FOUR, places="cpu"), 3, "batch"], ids=str)
def test_what_is_no_batch_is_an_error_that_asks_for_one(batch):
    wanted = rf"pass a batch, such as next\(iter\(loader\)\); got {type(batch).__name__}"
    with pytest.raises(TypeError, match=wanted):
        show(batch)


def test_clips_and_views_are_shown_one_at_a_time():
    clips = np.stack([FOUR, FOUR])
    with pytest.raises(ValueError, match=r"got \(2, 4, .*; pass one clip, or the views of one image"):
        show(clips)
    assert show(clips[1]).size == show(FOUR).size


def test_text_labels_are_drawn():
    assert show((FOUR, ["cat", "dog", "owl", "ant"])).size == show((FOUR, range(4))).size


BOXES = np.float32([[1, 1, 6, 6], [2, 2, 8, 7], [0, 0, 0, 0]])
FILLED_UP = np.stack([BOXES, *[BOXES * 0] * 3])
SPLITS = (np.array([0, 2, 2, 2, 3]),)
# Batches, each with the names of its images, their boxes and the boxes' labels.
BATCHES = {
    "dict": (
        {"image": FOUR, "boxes": Ragged(BOXES, SPLITS), "labels": Ragged(np.array([0, 1, 0]), SPLITS)},
        ("image", "boxes", "labels"),
    ),
    "tuple": ((FOUR, FILLED_UP, np.zeros((4, 3), int)), (None, "1", "2")),
    "nested": (
        {"image": FOUR, "target": {"boxes": FILLED_UP, "labels": np.zeros((4, 3))}},
        ("image", "target.boxes", "target.labels"),
    ),
}


@pytest.mark.parametrize(("batch", "names"), BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("form", ["xyxy", "xywh"])
def test_boxes_are_drawn_where_they_are(batch, names, form):
    name, boxes, labels = names
    one = Boxes(boxes, (form == "xyxy" and labels) or (), form)
    plain = np.asarray(show(FOUR, columns=4)).astype(int)
    drawn = np.asarray(show(batch, columns=4, fields=(name, one), classes=["cat", "dog"])).astype(int)
    changed = (plain != drawn).any(2)
    own = changed[4:12, 4:13]
    assert own[1, 1:7].all()  # the upper edge of the first box
    assert own[1:7, 1].all()
    assert not own[0].any()
    assert not changed[:, 13:].any()  # what fills up short rows is no box


def test_masks_and_points_are_drawn():
    masks = np.zeros((4, 8, 9), np.uint8)
    masks[0, 2:4], masks[1, :, 3] = 1, 2
    stacked = Ragged(masks[:2] > 0, (np.array([0, 2, 2, 2, 2]),))
    points = np.zeros((4, 2, 3), np.float32)
    points[2, 0] = 4, 4, 1
    batch = {"image": FOUR, "mask": masks, "masks": stacked, "pose": points}
    plain = np.asarray(show(FOUR, columns=4)).astype(int)

    def find(*along):
        changed = (plain != np.asarray(show(batch, columns=4, fields=("image", *along)))).any(2)
        return [changed[4:12, left : left + 9] for left in range(4, 56, 13)]

    for image, mask in zip(find("mask"), masks, strict=True):
        assert (image <= (mask > 0)).all()
        assert image.sum() >= 0.9 * (mask > 0).sum()
    first, *others = find(Mask("masks", stacked=True))
    assert (first <= (masks[:2] > 0).any(0)).all()
    assert first.sum() > 20
    assert not any(map(np.any, others))
    *_, third, fourth = find(Keypoints("pose"))
    assert third[4, 4]
    assert not third[0].any()
    assert not fourth.any()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (("image", "mask"), r"no field 'mask', but \['image', 'small'\]"),
        (("picture",), "no field 'picture'"),
        (("image", "small"), r"expected masks of 8 x 9 pixels in 'small', got \(4, 4\)"),
    ],
)
def test_fields_that_the_batch_lacks_are_an_error(fields, problem):
    with pytest.raises(ValueError, match=problem):
        show({"image": FOUR, "small": np.zeros((4, 4, 4))}, fields=fields)
