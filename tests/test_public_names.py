"""The public names: a change here is a change for users, and belongs into the changelog."""

import importlib
import pickle
import subprocess
import sys

import pytest

import gpuloader

NAMES = {
    "gpuloader": """
        BatchSampler CPUPlace CUDAPinnedPlace CUDAPlace ChainDataset ComposeDataset ComposeNotAligned
        ConcatDataset DataFeeder DataLoader Dataset DistributedBatchSampler EOFException FeedError FeedSpec
        IterableDataset LoaderError LoaderStats PlaceError Ragged RandomSampler ReaderError SampleError
        Sampler SequenceSampler StagingMemoryError Subset SubsetRandomSampler TensorDataset
        WeightedRandomSampler WorkerError WorkerTimeout batch cpu_places cuda_places data fluid
        get_worker_info random_split reader sample_rng trace
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


def test_importing_the_package_imports_no_gpu_library_and_nothing_for_tests():
    """On a machine without a GPU nothing may be paid, or fail, for one."""
    code = "import gpuloader, sys; print(*sorted(sys.modules))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in listed.stdout.split()}
    assert "gpuloader" in loaded
    assert not loaded & {"cupy", "torch", "jax", "paddle", "matplotlib", "rich"}
    assert "gpuloader.testing" not in listed.stdout.split()


def test_an_error_is_also_the_builtin_one_a_caller_may_expect():
    builtin = {
        "ComposeNotAligned": ValueError,
        "FeedError": ValueError,
        "PlaceError": ValueError,
        "ReaderError": TypeError,
        "SampleError": ValueError,
        "StagingMemoryError": MemoryError,
    }
    for name, base in builtin.items():
        assert issubclass(getattr(gpuloader, name), base)


def test_every_error_keeps_its_particulars_through_a_pickle():
    """Errors cross from a reader's process to the consumer's."""
    sample = gpuloader.SampleError("expected 1, got 2", batch=3, index=4, field="image")
    feed = gpuloader.FeedError("expected 1, got 2", index=4, field="image")
    worker = gpuloader.WorkerError("it died", pid=5, signal=9, indices=(1, 2))
    for error in (sample, feed, worker, gpuloader.EOFException("end")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
