"""A batch split into equal parts, one per place: together they are the batch."""

import contextlib

import numpy as np
import pytest

from gpuloader import CUDAPlace, DataLoader, TensorDataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(params=[(0, 0), (0, 1)])
def places(request):
    if request.param == (0, 1):
        request.getfixturevalue("gpus")
    return [CUDAPlace(index) for index in request.param]


def numbers(count=50):
    return TensorDataset(np.arange(count * 6, dtype=np.float32).reshape(count, 6), np.arange(count))


def check_devices(step, places):
    assert len(step) == len(places)
    for place, batch in zip(places, step, strict=True):
        assert {array.device.id for array in batch} == {place.index}


@pytest.mark.parametrize("cache", [None, "device"])
def test_together_they_are_the_batch(places, cache):
    options = {"batch_size": 10, "shuffle": True, "seed": 1}
    whole = [[field.copy() for field in batch] for batch in DataLoader(numbers(), places="cpu", **options)]
    loader = DataLoader(numbers(), places=places, split="shards", cache=cache, **options)
    assert len(loader) == len(whole)
    for step, wanted in zip(loader, whole, strict=True):
        check_devices(step, places)
        for field, expected in enumerate(wanted):
            got = np.concatenate([batch[field].get() for batch in step])
            np.testing.assert_array_equal(got, expected)


def test_padding_comes_with_masks_on_the_devices(places):
    loader = DataLoader(numbers(13), places=places, batch_size=5, split="shards", uneven="pad")
    seen = []
    for step in loader:
        check_devices(step, places)
        for _, labels, mask in step:
            seen += labels.get()[mask.get()].tolist()
    assert seen == list(range(13))


@pytest.mark.parametrize("output", ["cupy", "torch", "jax"])
def test_masks_of_each_output_are_ordered_like_their_fields(places, output, request):
    """Behind a long kernel on a side stream, without a look at the device in between."""
    framework = None if output == "cupy" else request.getfixturevalue(output)
    options = {"batch_size": 5, "split": "shards", "uneven": "pad", "output": output}
    side = [framework.cuda.Stream(place.index) for place in places] if output == "torch" else []
    kept = []
    with contextlib.ExitStack() as streams:
        for stream in side:
            streams.enter_context(framework.cuda.stream(stream))
        for step in DataLoader(numbers(53), places=places, **options):
            for _, labels, mask in step:
                kept.append((labels + 0, mask | mask))
            del step, labels, mask
    seen = []
    for labels, mask in kept:
        labels, mask = (
            np.asarray(one.get() if output == "cupy" else one.cpu() if side else one)
            for one in (labels, mask)
        )
        seen += labels[mask].tolist()
    assert seen == list(range(53))
