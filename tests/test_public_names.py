"""The public names: a change here is a change for users, and belongs into the changelog."""

import importlib

import pytest

import gpuloader

NAMES = {
    "gpuloader": """
        CPUPlace CUDAPinnedPlace CUDAPlace ComposeNotAligned DataFeeder DataLoader EOFException FeedError
        FeedSpec LoaderError LoaderStats PlaceError Ragged ReaderError SampleError StagingMemoryError
        WorkerError batch cpu_places cuda_places data fluid reader trace
    """,
    "gpuloader.fluid": """
        CPUPlace CUDAPinnedPlace CUDAPlace DataFeeder core cpu_places cuda_places data io layers
    """,
    "gpuloader.fluid.io": """
        ComposeNotAligned DataLoader PyReader batch buffered cache chain compose firstn map_readers
        multiprocess_reader shuffle xmap_readers
    """,
    "gpuloader.fluid.core": "CPUPlace CUDAPinnedPlace CUDAPlace EOFException",
    "gpuloader.fluid.layers": "data",
    "gpuloader.reader": """
        ComposeNotAligned batch buffered cache chain compose firstn map_readers multiprocess_reader shuffle
        xmap_readers
    """,
    "gpuloader.testing": """
        CustomPlace RaceError SimulatedArray SimulatedDevice SimulatedStream StepReader simulated_places
    """,
}


@pytest.mark.parametrize("module", NAMES)
def test_the_public_names_are_these(module):
    found = gpuloader.reader if module == "gpuloader.reader" else importlib.import_module(module)
    assert sorted(found.__all__) == sorted(NAMES[module].split())
    assert all(getattr(found, name).__doc__ for name in found.__all__)


def test_every_error_is_a_loader_error():
    errors = [getattr(gpuloader, name) for name in gpuloader.__all__ if name.endswith(("Error", "Exception"))]
    assert len(errors) == 8
    assert all(issubclass(error, gpuloader.LoaderError) for error in errors)
