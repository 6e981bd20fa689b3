"""Batches in PyTorch's own formats: results of transforms in bfloat16, and pictures in channels_last."""

import numpy as np
import pytest

import gpuloader
from gpuloader import DataLoader, TensorDataset
from gpuloader.testing import simulated_places
from gpuloader.transforms import Cast, Normalize, OneHot, RandomCropFlip

torch = pytest.importorskip("torch")

PICTURES = np.random.default_rng(0).integers(0, 256, (12, 8, 9, 3), np.uint8)
ROWS = TensorDataset(PICTURES, np.arange(12) % 4)
LAST = torch.channels_last


def load(*transforms, output="torch", **options):
    options = {"places": "cpu", "batch_size": 4, "transforms": list(transforms), "output": output, **options}
    return DataLoader(ROWS, **options)


WAYS = [
    {},
    {"num_workers": 1},
    {"num_workers": 2, "worker_type": "thread"},
    {"cache": "host"},
    {"places": ["cpu"] * 2, "split": "shards", "uneven": "pad"},
]


def flat(steps, ways):
    """Return the first field of every batch or shard."""
    return [part[0] for step in steps for part in (step if "split" in ways else [step])]


class TestBfloat16:
    @pytest.mark.parametrize("ways", WAYS, ids=str)
    def test_results_have_the_dtype(self, ways):
        found = flat(load(Cast("0", "bfloat16", 1 / 255), OneHot("1", 4, "bfloat16"), **ways), ways)
        wanted = torch.from_numpy(PICTURES).float().mul(1 / 255).to(torch.bfloat16)
        assert torch.equal(torch.cat(found), wanted)
        step = next(iter(load(OneHot("1", 4, "bfloat16"))))
        assert step[1].tolist() == torch.eye(4).tolist()
        assert step[1].dtype == torch.bfloat16

    def test_other_outputs_get_the_bits_and_torchs_may_be_viewed_so_again(self):
        wanted = torch.from_numpy(PICTURES[:4]).to(torch.bfloat16)
        for output in (None, "numpy", "torch"):
            [images, _], *_ = load(Cast("0", "bfloat16"), output=output)
            if output != "torch":
                assert images.dtype == np.uint16
                images = torch.from_numpy(images)
            assert torch.equal(images.view(torch.bfloat16), wanted)
        [images, labels], *_ = load(Cast("0", "uint16"))  # integers stay integers
        assert (images.dtype, labels.dtype) == (torch.uint16, torch.int64)

    def test_of_another_loaders_batches(self):
        tensors = torch.from_numpy(PICTURES)
        for images, output in ((tensors, None), (tensors, "torch"), (PICTURES, None)):
            options = {"output": output, "transforms": [Cast("0", "bfloat16")]}
            [(found, _)] = gpuloader.prefetch([(images, "text")], places="cpu", **options)
            assert found.dtype == (np.uint16 if images is PICTURES else torch.bfloat16)


class TestChannelsLast:
    @pytest.mark.parametrize("ways", WAYS, ids=str)
    def test_pictures_are_planes_in_memory_of_pixels(self, ways):
        options = {"mean": 0.5, "scale": 1 / 255}
        found = flat(load(Normalize("0", to="channels_last", **options), **ways), ways)
        wanted = flat(load(Normalize("0", **options), **ways), ways)
        for images, others in zip(found, wanted, strict=True):
            assert images.shape[1:] == (3, 8, 9)
            assert images.is_contiguous(memory_format=LAST)
            assert torch.equal(images, others)

    @pytest.mark.parametrize("first", ["window", "format"])
    def test_with_windows_and_a_dtype(self, first):
        window, planes = RandomCropFlip("0", (5, 4)), Normalize("0", to="channels_last", dtype="bfloat16")
        [images, _], *_ = load(*((window, planes) if first == "window" else (planes, window)), seed=1)
        assert (images.shape, images.dtype) == ((4, 3, 5, 4), torch.bfloat16)
        assert images.is_contiguous(memory_format=LAST)
        [same, _], *_ = load(window, Normalize("0", dtype="bfloat16"), seed=1)
        assert torch.equal(images, same)

    def test_a_cast_a_device_and_numpy_keep_it(self):
        [images, _], *_ = load(Normalize("0", to="channels_last"), Cast("0", "float16"))
        assert images.is_contiguous(memory_format=LAST)
        assert images.dtype == torch.float16
        for places in ("cpu", simulated_places(1)):
            [images, _], *_ = load(Normalize("0", to="channels_last"), output=None, places=places)
            np.testing.assert_array_equal(np.asarray(images), PICTURES[:4].transpose(0, 3, 1, 2))

    def test_libraries_without_strides_and_other_words_are_refused(self):
        with pytest.raises(ValueError, match="to must be one of 'HWC', 'CHW'"):
            Normalize("0", to="last")
        pytest.importorskip("jax")
        with pytest.raises(ValueError, match="to='channels_last' needs arrays with strides"):
            load(Normalize("0", to="channels_last"), output="jax")

    def test_a_batch_of_pytorchs_loader_keeps_it(self):
        images = torch.rand(4, 3, 8, 9).contiguous(memory_format=LAST)
        [found] = gpuloader.prefetch([{"x": images}], places=simulated_places(1))
        assert found["x"]._data.transpose(0, 2, 3, 1).flags.c_contiguous
        np.testing.assert_array_equal(np.asarray(found["x"]), images.numpy())
