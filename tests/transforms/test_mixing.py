"""Transforms over a batch of pictures: erased rectangles, and pictures mixed with their neighbors."""

import numpy as np
import pytest

import gpuloader.transforms as t
from gpuloader import DataLoader, SampleError, TensorDataset
from gpuloader.kernels.cast import round_to
from gpuloader.testing import simulated_places
from gpuloader.transforms.program import Plain
from tests.sample_sets import assert_same

SIDE = 16


def dataset(count=12, dtype=np.float32, layout="CHW"):
    shape = (count, 3, SIDE, SIDE) if layout == "CHW" else (count, SIDE, SIDE, 3)
    values = np.arange(1, count + 1).reshape(count, 1, 1, 1) * np.ones(shape)
    return TensorDataset(values.astype(dtype), np.arange(count) % 4)


def read(*transforms, source=None, **options):
    options = {"places": "cpu", "batch_size": 4, "seed": 3} | options
    loader = DataLoader(source or dataset(), transforms=list(transforms), **options)
    return [tuple(np.array(part) for part in batch) for batch in loader]


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.float16])
def test_erased_rectangles_have_the_chosen_area_and_color(layout, dtype):
    source = dataset(400, dtype, layout)
    options = {"scale": (0.1, 0.3), "ratio": (0.5, 2), "value": [200, 201, 202], "layout": layout}
    erase = t.RandomErasing("0", p=0.5, **options)
    [(images, _)] = read(erase, source=source, batch_size=400)
    assert images.dtype == dtype
    pixels = images if layout == "HWC" else images.transpose(0, 2, 3, 1)
    whole = source.tensors[0] if layout == "HWC" else source.tensors[0].transpose(0, 2, 3, 1)
    areas = []
    for picture, before in zip(pixels, whole, strict=True):
        erased = (picture == np.array([200, 201, 202])).all(2)
        np.testing.assert_array_equal(picture[~erased], before[~erased])
        if not erased.any():
            continue
        rows, columns = np.flatnonzero(erased.any(1)), np.flatnonzero(erased.any(0))
        assert erased[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert 0.4 < len(rows) / len(columns) < 2.5
        areas.append(erased.mean())
    assert 160 < len(areas) < 240
    assert 0.08 < min(areas) < max(areas) < 0.35


def test_erasing_is_the_same_with_any_workers_and_new_in_each_epoch():
    erase = t.RandomErasing("0")
    for workers in ({"num_workers": 2, "worker_type": "thread"}, {"num_workers": 2}):
        assert_same(read(erase, **workers), read(erase))
    always = [t.RandomErasing("0", p=1)]
    loader = DataLoader(dataset(), places="cpu", batch_size=12, seed=3, transforms=always)
    [(one, _)], [(other, _)] = list(loader), list(loader)
    assert (one != other).any()


def test_the_dataset_itself_is_not_erased():
    source = dataset()
    before = source.tensors[0].copy()
    read(t.RandomErasing("0", p=1), source=source)
    np.testing.assert_array_equal(source.tensors[0], before)


def shares(labels):
    assert labels.dtype == np.float32
    np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-6)
    return labels


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_mixup_blends_each_picture_with_the_one_before(dtype):
    for images, labels in read(t.MixUp("0", "1", 4), source=dataset(dtype=dtype)):
        own = shares(labels)[1, 1]
        assert 0 <= own <= 1
        numbers = np.arange(4)
        expected = own * numbers + (1 - own) * np.roll(numbers, 1)  # above the first picture of the batch
        got = images[:, 0, 0, 0].astype(float)
        np.testing.assert_allclose(got - got[0], expected - expected[0], rtol=2e-3, atol=6e-3)
        np.testing.assert_allclose(labels, own * np.eye(4) + (1 - own) * np.roll(np.eye(4), 1, 0), atol=1e-6)
        assert images.dtype == dtype


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_cutmix_pastes_a_window_of_the_one_before(layout, dtype):
    windows = set()
    for images, labels in read(t.CutMix("0", "1", 4, layout=layout), source=dataset(40, dtype, layout)):
        pixels = images if layout == "HWC" else images.transpose(0, 2, 3, 1)
        own = shares(labels)[1, 1]
        values = [np.unique(picture) for picture in pixels]
        base = min(value.min() for value in values)
        pasted = pixels[..., 0] != base + np.arange(4).reshape(4, 1, 1)
        assert (pasted == pasted[0]).all()
        expected = (base + np.roll(np.arange(4), 1)).reshape(4, 1, 1, 1) * np.ones_like(pixels)
        np.testing.assert_array_equal(pixels[pasted], expected[pasted])
        assert pasted[0].mean() == pytest.approx(1 - own, abs=1e-6)
        windows.add(pasted[0].tobytes())
    assert len(windows) > 5


def test_proportions_follow_the_beta_distribution():
    def own(alpha):
        batches = read(t.MixUp("0", "1", 4, alpha=alpha), source=dataset(2000), batch_size=4)
        return np.array([labels[1, 1] for _, labels in batches])

    even, extreme = own(1.0), own(0.1)
    assert abs(even.mean() - 0.5) < 0.05
    assert even.std() == pytest.approx(12**-0.5, rel=0.1)
    assert ((extreme < 0.1) | (extreme > 0.9)).mean() > 0.6


def test_labels_may_be_rows_of_floats_already():
    assert_same(read(t.OneHot("1", 4), t.MixUp("0", "1", 4)), read(t.MixUp("0", "1", 4)))


def test_mixing_follows_normalizing_and_reaches_a_last_short_batch():
    source = dataset(5, np.uint8, "HWC")
    scale = t.Normalize("0", scale=1 / 255)
    batches = read(scale, t.RandomErasing("0"), t.CutMix("0", "1", 4), t.MixUp("0", "1", 4), source=source)
    assert [(images.shape, labels.shape) for images, labels in batches] == [
        ((4, 3, SIDE, SIDE), (4, 4)),
        ((1, 3, SIDE, SIDE), (1, 4)),
    ]


STEPS = t.RandomErasing("0"), t.CutMix("0", "1", 4), t.MixUp("0", "1", 4)


WAYS = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}]
WAYS += [{"cache": "device", "shuffle": True}, {"static": True}, {"prefetch": 3, "shuffle": True}]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_gpu_makes_the_same(options):
    plain = {name: value for name, value in options.items() if name == "shuffle"}
    assert_same(read(*STEPS, places=simulated_places(1), **options), read(*STEPS, **plain))


@pytest.mark.parametrize("split", ["batches", "shards"])
def test_several_gpus_make_what_several_cpus_make(split):
    def run(places):
        options = {"batch_size": 4, "seed": 3, "transforms": list(STEPS), "split": split}
        loader = DataLoader(dataset(24), places=places, **options)
        return [tuple(np.array(one) for one in part) for step in loader for part in step]

    assert_same(run(simulated_places(2)), run(["cpu"] * 2))


@pytest.mark.parametrize("places", ["cpu", "simulated"])
@pytest.mark.parametrize("layout", [None, "CHW", "HWC"])
@pytest.mark.parametrize(
    "make",
    [
        t.RandomErasing,
        lambda field, **layout: t.CutMix(field, "1", 4, **layout),
        lambda field, **layout: t.RandomCropFlip(field, (5, 4), **layout),
    ],
)
def test_pictures_keep_their_memory_format(make, layout, places):
    """After `Normalize(to="channels_last")`, the channels of a pixel still lie side by side."""
    source = dataset(dtype=np.uint8, layout="HWC")
    expected = read(t.Normalize("0"), make("0"), source=source)
    assert expected[0][0].shape[1] == 3
    steps = [t.Normalize("0", to="channels_last"), make("0", layout=layout)]
    places = simulated_places(1) if places == "simulated" else places
    assert_same(read(*steps, source=source, places=places), expected)
    for images, _ in DataLoader(source, places="cpu", batch_size=4, transforms=steps):
        assert images.transpose(0, 2, 3, 1).flags.c_contiguous


def test_pictures_of_bfloat16_are_blended_as_floats():
    source = dataset(dtype=np.uint8, layout="HWC")
    floats = read(t.Normalize("0"), t.MixUp("0", "1", 4), source=source)
    steps = t.Normalize("0", dtype="bfloat16", to="channels_last"), t.MixUp("0", "1", 4)
    bits = read(*steps, source=source)
    assert_same(bits, [(round_to(blended, "bfloat16"), shares) for blended, shares in floats])
    assert_same(read(*steps, source=source, places=simulated_places(1)), bits)


@pytest.mark.parametrize("value", [1.5, [1.5, 2, 3]])
def test_a_color_is_put_among_bits_as_bits(value):
    source = dataset(dtype=np.uint8, layout="HWC")
    erase = t.RandomErasing("0", p=1, value=value)
    [(floats, _)] = read(t.Normalize("0"), erase, source=source, batch_size=12)
    [(bits, _)] = read(t.Normalize("0", dtype="bfloat16"), erase, source=source, batch_size=12)
    np.testing.assert_array_equal((bits.astype(np.uint32) << 16).view(np.float32), floats)
    assert (floats == 1.5).any()


MIXING = [
    lambda **layout: t.RandomErasing("0", p=1, value=[7, 8, 9], **layout),
    lambda **layout: t.CutMix("0", "1", 4, **layout),
]
PLACES = {"cpu": lambda: "cpu", "gpu": lambda: simulated_places(1)}


def made_singly():
    """Return pictures that the loader makes from single pictures, which a place with a GPU does by itself."""
    images, labels = dataset(dtype=np.uint8, layout="HWC").tensors
    return list(zip(images, labels.tolist(), strict=True))


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("make", MIXING)
@pytest.mark.parametrize(
    ("before", "layout"),
    [
        ([], "HWC"),
        ([t.Cast("0", "float32")], "HWC"),
        ([t.RandomCropFlip("0", (9, 12))], "HWC"),
        ([t.Normalize("0", to="HWC")], "HWC"),
        ([t.Normalize("0")], "CHW"),
        ([t.Normalize("0"), t.RandomErasing("0"), t.Cast("0", "float16")], "CHW"),
        ([t.Normalize("0"), t.RandomCropFlip("0", (9, 12))], "CHW"),
    ],
    ids=repr,
)
def test_the_layout_is_what_the_transforms_before_make(before, layout, make, places):
    pytest.importorskip("PIL")
    chain, source = [t.RandomFlip("0"), *before], made_singly()
    stated = read(*chain, make(layout=layout), source=source)
    assert_same(read(*chain, make(), source=source, places=places()), stated)
    with pytest.raises(
        ValueError, match=rf"{type(make()).__name__} of field '0' has layout .* {layout}; pass"
    ):
        read(*chain, make(layout={"HWC": "CHW", "CHW": "HWC"}[layout]), source=source, places=places())


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("make", MIXING)
def test_pictures_of_unknown_layout_that_look_like_hwc_are_an_error(make, places):
    source = dataset(dtype=np.float32, layout="HWC")
    with pytest.raises(SampleError, match=r"got shape \(16, 16, 3\), which looks like HWC; .*layout='HWC'"):
        read(make(), source=source, places=places())
    assert read(make(layout="HWC"), source=source, places=places())
    images = np.zeros((4, 8, 4, 4), np.float32)  # small pictures of many channels, if the user says so
    assert read(
        t.CutMix("0", "1", 4, layout="CHW"), source=TensorDataset(images, np.arange(4)), places=places()
    )


def test_the_shape_of_pictures_of_another_layout_is_named():
    source = TensorDataset(np.zeros((4, 3, 32, 24), np.uint8), np.arange(4))
    with pytest.raises(SampleError, match=r"got 24 in images of shape \(3, 32, 24\) in layout HWC"):
        read(t.Normalize("0"), source=source)


def test_a_second_normalize_is_named():
    with pytest.raises(ValueError, match=r"layout HWC, but the Normalize before it makes .* leave one"):
        read(t.Normalize("0"), t.Normalize("0", 0.5), source=dataset(dtype=np.uint8, layout="HWC"))
    twice = [t.Normalize("0", scale=0.5), t.Normalize("0", layout="CHW", mean=1)]
    once = t.Normalize("0", scale=0.5, mean=1)
    source = dataset(dtype=np.uint8, layout="HWC")
    assert_same(read(*twice, source=source), read(once, source=source))


def test_a_transform_of_the_users_may_make_another_layout():
    class Turn(Plain):
        field = "0"

        def bind(self, inputs):
            (count, channels, height, width), dtype = inputs[0]
            self.outputs = (((count, height, width, channels), dtype),)
            return self

        def on_host(self, inputs, outputs):
            outputs[0][...] = inputs[0].transpose(0, 2, 3, 1)

    source = dataset(dtype=np.uint8, layout="HWC")
    [images, _], *_ = read(t.Normalize("0"), Turn(), t.CutMix("0", "1", 4, layout="HWC"), source=source)
    assert images.shape == (4, SIDE, SIDE, 3)


@pytest.mark.parametrize("cache", [None, "device"])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("wrong", [-1, 4])
@pytest.mark.parametrize("mix", [t.MixUp("0", "1", 4), t.CutMix("0", "1", 4)], ids=repr)
@pytest.mark.parametrize("before", [[], [t.Normalize("0", layout="CHW")]], ids=repr)
def test_a_label_that_is_no_class_is_an_error(before, mix, wrong, places, cache):
    source = dataset()
    source.tensors[1][6] = wrong
    with pytest.raises(SampleError, match=rf"from 0 to 3, since classes is 4, got {wrong}") as caught:
        read(*before, mix, source=source, places=places(), cache=cache)
    assert (caught.value.field, caught.value.dataset_index) == ("1", 6)


@pytest.mark.parametrize(
    ("transforms", "problem"),
    [
        ([t.Cast("0", "uint8"), t.MixUp("0", "1", 4)], "images of floats, got uint8; put MixUp after"),
        ([t.OneHot("1", 3), t.MixUp("0", "1", 4)], r"field '0': expected labels .* 4 floats, .* \(3,\)"),
        ([t.MixUp("0", "2", 4)], "field '2': no such array field to transform"),
        ([t.RandomErasing("0", value=[1, 2])], "of 3 channels, got .* of shape .3, 16, 16. in layout CHW"),
        ([t.RandomErasing("1")], "expected images in layout CHW"),
    ],
)
def test_what_does_not_fit_is_an_error(transforms, problem):
    with pytest.raises(SampleError, match=problem):
        read(*transforms)
