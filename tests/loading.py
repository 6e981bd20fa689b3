"""Loaders as most tests make them."""

from gpuloader import DataLoader


def load(dataset, **options):
    """Return a loader for a CPU place."""
    return DataLoader(dataset, **{"places": "cpu", **options})


def read_batches(batches, places="cpu", *, capacity=2, **options):
    """Return a loader over a reader of whole batches, without feeds."""
    loader = DataLoader.from_generator(capacity=capacity, return_list=True, **options)
    return loader.set_batch_generator(batches, places=places)
