"""Pictures with masks, boxes and keypoints: the same ones on every place, and errors that name the field."""

import weakref

import numpy as np
import pytest

from gpuloader import DataLoader, FeedSpec, ImageSample, SampleError
from gpuloader.testing import simulated_places
from gpuloader.transforms import (
    Boxes,
    Cast,
    CenterCrop,
    ColorJitter,
    Keypoints,
    Mask,
    Normalize,
    PadImage,
    RandomAffine,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)
from tests.picture_files import encode, make_pixels, pillow
from tests.sample_sets import Made

ALONG = (
    Mask("mask", fill=9),
    Boxes("boxes", ("labels", "masks")),
    Mask("masks", stacked=True),
    Keypoints("points", "names", drop=True),
    Keypoints("pose"),
)
FIELDS = ("image", *ALONG)


def make_sample(number, form="JPEG"):
    """Return a sample whose mask says where its boxes are, and whose boxes have masks of their own."""
    rng = np.random.default_rng(number)
    size = height, width = 60 + 7 * number, 80 - 5 * number
    low = rng.integers(0, (width // 2, height // 2), (number % 4, 2))
    boxes = np.concatenate([low, low + rng.integers(8, 30, low.shape)], 1).astype(np.float32)
    masks = np.zeros((len(boxes), *size), bool)
    mask = np.zeros(size, np.uint8)
    for row, (left, top, right, bottom) in enumerate(boxes.astype(int)):
        masks[row, top:bottom, left:right] = True
        mask[masks[row]] = row + 1
    points = rng.random((5, 2)).astype(np.float32) * [width, height]
    return {
        "image": encode(make_pixels(*size, seed=number), form),
        "mask": encode(mask, "PNG"),
        "boxes": boxes,
        "labels": np.arange(len(boxes)) + 10 * number,
        "masks": masks,
        "points": points,
        "names": np.arange(5),
        "pose": np.concatenate([points, np.ones((5, 1))], 1),
    }


@pytest.fixture(scope="module")
def samples():
    return [make_sample(number) for number in range(8)]


def flat(batch):
    """Return the arrays of a batch by name, on the host; those of a ragged field are three."""
    arrays = {}
    for name, value in batch.items():
        for part, array in enumerate(
            (value.values, *value.row_splits) if hasattr(value, "row_splits") else (value,)
        ):
            arrays[name, part] = np.asarray(array)
    return arrays


def read(samples, transforms, places="cpu", **options):
    loader = DataLoader(samples, places=places, batch_size=4, seed=3, transforms=transforms, **options)
    return [flat(batch) for _ in range(2) for batch in loader]


def check_same(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            assert array.dtype == other[name].dtype, name
            np.testing.assert_array_equal(array, other[name], err_msg=str(name))


CHAINS = {
    "train": [RandomResizedCrop(FIELDS, 32), RandomFlip(FIELDS)],
    "validate": [Resize(FIELDS, 48), CenterCrop(FIELDS, 40)],
    "letterbox": [CenterCrop(FIELDS, 128), Resize(FIELDS, (64, 64)), ColorJitter("image", 0.4)],
    "margin": [
        RandomResizedCrop(FIELDS, 32),
        PadImage(FIELDS, (1, 2, 3, 4)),
        RandomFlip(FIELDS, axis="vertical"),
    ],
    "turned": [
        RandomAffine(FIELDS, 30, (0.1, 0.1), (0.8, 1.2), 10),
        Resize(FIELDS, (40, 30)),
        ColorJitter(FIELDS, 0.4),
    ],
    "turned last": [RandomResizedCrop(FIELDS, 32, scaled=True), RandomAffine(FIELDS, 30)],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_gpu_gets_what_a_cpu_gets(chain, samples):
    transforms = [*CHAINS[chain], Normalize("image", scale=1 / 255), Cast("mask", "int64")]
    expected = read(samples, transforms)
    check_same(read(samples, transforms, simulated_places(1)), expected)
    check_same(read(samples, transforms, simulated_places(1), decode="device"), expected)
    if chain == "train":
        for kind in ("thread", "process"):
            check_same(read(samples, transforms, num_workers=2, worker_type=kind), expected)


def test_all_fields_move_by_one_draw(samples):
    batches = read(samples, CHAINS["train"])
    count = 0
    for batch in batches:
        splits = batch["boxes", 1]
        for row, mask in enumerate(batch["mask", 0]):
            own = slice(splits[row], splits[row + 1])
            for box, one, label in zip(
                *(batch[name, 0][own] for name in ("boxes", "masks", "labels")), strict=True
            ):
                # Where its own mask is, the whole picture's has its number, or that of a later box above it.
                assert (mask[one] >= label % 10 + 1).all()
                rows, columns = one.any(1).nonzero()[0], one.any(0).nonzero()[0]
                found = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
                np.testing.assert_allclose(box, found, atol=1.01)
                count += 1
    assert count > 10
    assert len({batch["boxes", 0].tobytes() for batch in batches}) == len(batches)


def test_samples_may_be_tuples_or_nested():
    image, mask, box = make_pixels(8, 9), np.arange(72).reshape(8, 9), [[1, 2, 5, 6]]
    expected = mask[:, ::-1]
    forms = [
        ((mask, image), (None, "0")),
        ((image, mask), ("0", "1")),
        (ImageSample(image, mask), ("image", "label")),
        (
            {"target": {"mask": mask, "boxes": box}, "image": image},
            ("image", "target.mask", Boxes("target.boxes")),
        ),
        ([image, [mask, "text"]], ("0", "1.0")),
    ]
    for sample, fields in forms:
        [batch] = DataLoader([sample], places="cpu", transforms=[RandomFlip(fields, p=1)])
        if isinstance(sample, dict):
            assert batch["target"]["boxes"].values.tolist() == [[4, 2, 8, 6]]
            batch = batch["image"], batch["target"]["mask"]
        found = [array for array in (*batch, *batch[1]) if getattr(array, "shape", ()) == (1, 8, 9)]
        np.testing.assert_array_equal(found[0][0], expected)


def test_declared_fields_move_too():
    samples = [(make_pixels(8, 9), np.ones((8, 9), np.uint8))] * 2
    feeds = [FeedSpec("image", (None, 4, 4, 3), "uint8"), FeedSpec("mask", (None, 4, 4), "int64")]
    crop = [CenterCrop(("image", "mask"), 4)]
    [[_, mask]] = DataLoader(samples, places="cpu", batch_size=2, feed_list=feeds, transforms=crop)
    assert (mask.shape, mask.dtype) == ((2, 4, 4), np.int64)


def test_the_number_of_boxes_may_vary_or_be_padded():
    image = make_pixels(8, 9)
    samples = [
        {"image": image, "boxes": [], "labels": []},
        {"image": image, "boxes": [[0, 0, 4, 4], [5, 5, 9, 8]], "labels": [3, 4]},
    ]
    flip = RandomFlip(("image", Boxes("boxes", "labels")), p=1)
    options = {"places": "cpu", "batch_size": 2, "transforms": [flip]}
    [batch] = DataLoader(samples, **options)
    assert batch["boxes"].row_splits[0].tolist() == batch["labels"].row_splits[0].tolist() == [0, 0, 2]
    assert batch["boxes"].values.tolist() == [[5, 0, 9, 4], [0, 5, 4, 8]]
    assert (batch["labels"].values.dtype, batch["labels"].values.tolist()) == (np.int64, [3, 4])
    [batch] = DataLoader(samples, pad={"boxes": 0, "labels": -1}, **options)
    assert batch["labels"].tolist() == [[-1, -1], [3, 4]]
    [batch] = DataLoader(samples, collate_fn=lambda rows: [len(one["boxes"]) for one in rows], **options)
    assert batch == [0, 2]
    options["batch_size"] = None
    assert [len(sample["boxes"]) for sample in DataLoader(samples, **options)] == [0, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_targets_are_a_dict_for_each_sample(samples, workers):
    options = {"places": "cpu", "batch_size": 4, "seed": 1, "num_workers": workers}
    options["transforms"] = [RandomResizedCrop(FIELDS, 24), RandomFlip(FIELDS)]
    for ragged, batch in zip(
        DataLoader(samples, **options), DataLoader(samples, targets="list", **options), strict=True
    ):
        assert [*batch] == ["image", "mask", "pose", "targets"]
        assert len(batch["targets"]) == 4
        for number, target in enumerate(batch["targets"]):
            assert [*target] == ["boxes", "labels", "masks", "points", "names"]
            for name, value in target.items():
                np.testing.assert_array_equal(np.asarray(value), np.asarray(ragged[name][number]))


def test_targets_need_dicts_with_fields_of_varying_length():
    image = make_pixels(8, 9)
    for sample, ragged, found in [
        ((image, [1, 2]), ["1"], "got list"),
        ({"image": image, "label": 1}, [], r"got \['image', 'label'\]"),
        ({"image": image, "targets": 1, "boxes": [1]}, ["boxes"], r"got \['boxes', 'image', 'targets'\]"),
    ]:
        loader = DataLoader([sample], places="cpu", ragged=ragged, targets="list")
        with pytest.raises(SampleError, match=f"targets='list' needs samples that are dicts.*{found}"):
            next(iter(loader))
    with pytest.raises(ValueError, match="targets must be one of 'list' or None, got 'dict'"):
        DataLoader([1], places="cpu", targets="dict")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"mask": np.zeros((4, 4), np.uint8)}, r"field 'mask'.*: expected a mask of 8 x 9 pixels"),
        ({"boxes": [[0, 0, 40, 4]]}, r"field 'boxes'.*: expected boxes within the image of 8 x 9 pixels"),
        ({"labels": [1, 2]}, r"field 'labels'.*: expected one entry for each of the 1 of 'boxes', got 2"),
        ({"labels": None}, r"field 'labels'.*: no field 'labels' to move with the image; the sample has"),
        ({"mask": b"no mask"}, "field 'mask'.*: .*its data is in no format"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("workers", [0, 2])
def test_errors_name_the_sample_and_the_field(change, problem, workers):
    good = {"image": make_pixels(8, 9), "mask": np.zeros((8, 9)), "boxes": [[0, 0, 4, 4]], "labels": [1]}
    bad = {name: value for name, value in (good | change).items() if value is not None}
    crop = CenterCrop(("image", "mask", Boxes("boxes", "labels")), 4)
    options = {"places": "cpu", "batch_size": 2, "num_workers": workers, "transforms": [crop]}
    loader = DataLoader([good] * 5 + [bad], **options)
    with pytest.raises(SampleError, match=f"batch 2, sample 1, dataset index 5.*{problem}"):
        list(loader)


def test_a_dataset_may_refill_its_arrays():
    image, mask = np.zeros((8, 9, 3), np.uint8), np.zeros((8, 9), np.uint8)
    boxes, labels = np.zeros((1, 4)), np.zeros(1, int)

    def refill(index):
        mask[:] = labels[:] = index
        boxes[:] = 0, 0, index + 1, index + 1
        return {"image": image, "mask": mask, "boxes": boxes, "labels": labels}

    flip = RandomFlip(("image", "mask", Boxes("boxes", "labels")), p=1)
    [batch] = DataLoader(Made(refill, 4), places="cpu", batch_size=4, transforms=[flip])
    assert batch["mask"][:, 0, 0].tolist() == batch["labels"].values.tolist() == [0, 1, 2, 3]
    assert batch["boxes"].values[:, 3].tolist() == [1, 2, 3, 4]


def test_a_batch_does_not_hold_its_masks_open(tmp_path):
    path = tmp_path / "mask.png"
    path.write_bytes(encode(np.zeros((8, 9), np.uint8), "PNG"))
    held = []

    def read(index):
        mask = pillow.open(path)
        held.append(weakref.ref(mask))
        assert sum(one() is not None for one in held) <= 2
        return {"image": make_pixels(8, 9), "mask": mask}

    flip = [RandomFlip(("image", "mask"), p=1)]
    [batch] = DataLoader(Made(read, 4), places="cpu", batch_size=4, transforms=flip)
    assert batch["mask"].shape == (4, 8, 9)


@pytest.mark.parametrize("along", [(), (Boxes("boxes", "labels"),)], ids=["rows", "ragged"])
def test_of_several_bad_files_the_first_is_named_and_all_can_be_left_out(along, samples):
    mask, image = samples[1]["mask"][:60], samples[2]["image"][:40]
    damaged = [samples[0], samples[1] | {"mask": mask}, samples[2] | {"image": image}, samples[3]]
    names = ["image", "mask", *(["boxes", "labels"] if along else [])]
    damaged = [{name: sample[name] for name in names} for sample in damaged]
    options = {"batch_size": 4, "seed": 3, "transforms": [RandomResizedCrop(("image", "mask", *along), 16)]}
    with pytest.raises(SampleError, match=r"sample 1, dataset index 1, field 'mask'"):
        list(DataLoader(damaged, places="cpu", **options))
    [batch] = DataLoader(damaged, places="cpu", on_bad="skip", **options)
    good = [{name: one[name] for name in names} for one in samples[:4]]
    [whole] = DataLoader(good, places="cpu", **options)
    np.testing.assert_array_equal(batch["mask"], whole["mask"][[0, 3]])


@pytest.mark.parametrize(
    ("transforms", "problem"),
    [
        ([Resize(("image", "mask"), 8), RandomFlip("image")], "differ in what moves along with it"),
        ([RandomFlip("image"), Resize(("image", "mask"), 8)], "differ in what moves along with it"),
        ([Resize(("image", "mask"), 8), Resize("mask", 8)], r"\['mask'\] move along"),
        ([Resize(("a", "mask"), 8), Resize(("b", "mask"), 8)], r"\['mask'\] move along"),
        ([Cast("mask", "int64"), Resize(("image", "mask"), 8)], "must come before Cast"),
        ([Cast("labels", "int64"), Resize(("image", Boxes("boxes", "labels")), 8)], "must come before Cast"),
    ],
)
def test_transforms_that_do_not_fit_together_are_refused(transforms, problem):
    with pytest.raises(ValueError, match=problem):
        DataLoader([{}], places="cpu", transforms=transforms)
