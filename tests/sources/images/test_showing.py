"""`show` draws what a batch holds, and says what is wrong with what it cannot draw."""

import warnings

import numpy as np
import pytest

from gpuloader import DataLoader, show
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


def test_text_labels_are_drawn():
    assert show((FOUR, ["cat", "dog", "owl", "ant"])).size == show((FOUR, range(4))).size
