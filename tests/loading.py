"""Loaders as most tests make them."""

import json

import numpy as np

from gpuloader import DataLoader
from gpuloader.staging import Slot


def load(dataset, **options):
    return DataLoader(dataset, **{"places": "cpu", **options})


def read_batches(batches, places="cpu", *, capacity=2, **options):
    """Return a loader over a reader of whole batches, without feeds."""
    loader = DataLoader.from_generator(capacity=capacity, return_list=True, **options)
    return loader.set_batch_generator(batches, places=places)


def make_slot(nbytes, kind=Slot):
    """Return a slot outside of any ring, full of ones: what is not written shows."""
    region = np.full(max(nbytes, 1), 255, np.uint8)
    return kind(region, region)


def resume(make, count):
    """Leave a loader from `make()` after some batches; return these, and a loader that goes on there."""
    left, again = make(), make()
    epoch = iter(left)
    before = [next(epoch) for _ in range(count)]
    state = json.loads(json.dumps(left.state_dict()))
    epoch.close()
    again.load_state_dict(state)
    return before, again
