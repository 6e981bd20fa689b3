"""`blend`, `paste` and `mix_labels`: each rounding is NumPy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.cast import NUMPY_FLOATS, round_to
from gpuloader.kernels.mixup import blend, mix_labels, paste
from tests.kernels.cases import SHARES, as_images, make_floats, make_mix
from tests.kernels.shim import as_floats, examples, same_bits


def test_a_blend_of_bfloat16_is_one_of_floats_rounded():
    floats = as_floats(as_images(make_floats((4, 50), "float32", 3), "bfloat16"))
    mix = make_mix(4, 0.3)
    found = blend.on_host(as_images(floats, "bfloat16"), mix, dtype="bfloat16")
    np.testing.assert_array_equal(found, round_to(blend.on_host(floats, mix), "bfloat16"))


@given(dtype=st.sampled_from(NUMPY_FLOATS), share=SHARES, seed=st.integers(0, 99))
@examples(50)
def test_a_blend_rounds_each_operation(dtype, share, seed):
    images = make_floats((3, 8), dtype, seed)
    own = np.float32(share).astype("float64" if dtype == "float64" else "float32")
    before = np.float32(1) - np.float32(share)
    rows = images.astype(own.dtype)
    expected = [rows[one - 1] * before.astype(own.dtype) + rows[one] * own for one in range(3)]
    same_bits(blend.on_host(images, make_mix(3, share)), np.stack(expected).astype(dtype))


def test_a_window_is_that_of_the_image_before():
    images = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 1, 2, 4)
    expected = images.copy()
    expected[:, 0, 1, 2:] = images[[2, 0, 1], 0, 1, 2:]
    found = paste.on_host(images, make_mix(3, 0.5, (1, 2, 2, 4)))
    np.testing.assert_array_equal(found, expected)


def test_labels_and_rows_of_shares_are_mixed_alike():
    mix = make_mix(3, 0.3)
    whole = mix_labels.on_host(np.array([2, 0, 5]), mix, classes=3)
    rows = np.array([[0, 0, 1], [1, 0, 0], [0, 0, 0]], np.float32)
    same_bits(mix_labels.on_host(rows, mix, classes=3), whole)
    np.testing.assert_allclose(whole, [[0, 0, 0.3], [0.3, 0, 0.7], [0.7, 0, 0]], rtol=1e-6)
