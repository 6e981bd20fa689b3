"""The names of ``paddle.vision.transforms``: errors are about the parameters that the user wrote."""

import pytest

from gpuloader.vision.transforms import RandomResizedCrop, Resize


@pytest.mark.parametrize("transform", [Resize, RandomResizedCrop])
def test_an_unknown_interpolation_is_an_error_of_that_name(transform):
    with pytest.raises(ValueError, match="interpolation must be one of 'bilinear', 'bicubic', got 'nearest'"):
        transform(8, interpolation="nearest")
    assert transform(8, interpolation="bicubic").filter == "bicubic"
