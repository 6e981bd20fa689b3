"""Shards of Ray Data through the loader's slots, with a local Ray that the tests start and stop."""

import runpy
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuloader
from gpuloader.errors import MissingPackage
from tests.fakes import run_threads

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_mnist.py"


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackage, match=r"needs ray.*\[ray\]"):
        gpuloader.from_ray(object(), batch_size=2)


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """A local Ray with its own home directory, so that it leaves nothing in the user's."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    patch = pytest.MonkeyPatch()
    patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # By default 15, at which the workers hardly run beside other tests: the example took three times as long.
    patch.setenv("RAY_worker_niceness", "0")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()
    patch.undo()


@pytest.fixture
def dataset(ray):
    """100 rows in five blocks."""
    import pyarrow as pa

    def make_block(numbers):
        pixels = pa.array(np.repeat(numbers, 4).astype(np.float32))
        names = [f"sample {number}" for number in numbers]
        images = pa.FixedSizeListArray.from_arrays(pixels, 4)
        return pa.table({"image": images, "label": numbers, "name": names})

    return ray.data.from_arrow([make_block(numbers) for numbers in np.arange(100).reshape(5, 20)])


def check(batch):
    labels = batch["label"]
    assert batch["image"].dtype == np.float32
    assert (batch["image"] == labels[:, None]).all()
    assert batch["name"] == [f"sample {label}" for label in labels]
    return labels.tolist()


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.ray
@pytest.mark.parametrize("workers", [0, 1])
def test_every_row_arrives_once_an_epoch(dataset, workers):
    loader = gpuloader.from_ray(dataset, batch_size=15, places="cpu", num_workers=workers)
    for _ in range(2):
        batches = [check(batch) for batch in loader]
        assert sorted(label for batch in batches for label in batch) == list(range(100))
        assert [len(batch) for batch in batches] == [15] * 6 + [10]
    assert not [one for one in threading.enumerate() if "gpuloader" in one.name]


@pytest.mark.ray
def test_shards_of_a_split_are_disjoint_and_everything(dataset):
    shards = dataset.streaming_split(2, equal=True)
    seen = [[], []]

    def read(rank):
        loader = gpuloader.from_ray(shards[rank], batch_size=10, places="cpu", drop_last=True)
        seen[rank] += [check(batch) for batch in loader]

    ranks = iter((0, 1))
    run_threads(lambda: read(next(ranks)), 2)
    assert [len(batches) for batches in seen] == [5, 5]
    assert sorted(label for batches in seen for batch in batches for label in batch) == list(range(100))


@pytest.mark.ray
def test_arrays_of_numpy_and_rays_own_tensors(ray):
    pictures = np.arange(96, dtype=np.float32).reshape(8, 3, 4)
    (batch,) = gpuloader.from_ray(ray.data.from_numpy(pictures), batch_size=8, places="cpu")
    assert batch["data"].tolist() == pictures.tolist()


@pytest.mark.ray
def test_tensors_whose_shapes_vary_are_arrays_one_by_one(ray):
    rows = [{"image": np.full((2, width), width, np.float32)} for width in (1, 2, 3)]
    loader = gpuloader.from_ray(ray.data.from_items(rows), batch_size=3, places="cpu", collate_fn=list)
    (batch,) = loader
    assert sorted(sample["image"].shape for sample in batch) == [(2, 1), (2, 2), (2, 3)]


@pytest.mark.ray
@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_is_resumed_between_epochs_alone(dataset, workers):
    def load():
        return gpuloader.from_ray(dataset, batch_size=15, places="cpu", num_workers=workers)

    loader = load()
    batches = iter(loader)
    next(batches)
    again = load()
    again.load_state_dict(loader.state_dict())
    with pytest.raises(gpuloader.SampleError, match=r"resumed in its middle, .*; save states between"):
        list(again)
    batches.close()
    list(loader)
    behind = load()
    behind.load_state_dict(loader.state_dict())
    assert sorted(label for batch in behind for label in check(batch)) == list(range(100))
    again.set_epoch(1)
    assert len(list(again)) == 7


@pytest.mark.ray
def test_what_makes_no_sense_is_refused(dataset):
    with pytest.raises(TypeError, match="expected a shard or dataset of Ray Data, got list"):
        gpuloader.from_ray([1, 2], batch_size=2)
    for options in ({"num_workers": 2}, {"worker_type": "process"}):
        with pytest.raises(ValueError, match="one thread of this process"):
            gpuloader.from_ray(dataset, batch_size=2, places="cpu", **options)
    with pytest.raises(ValueError, match="shuffle"):
        gpuloader.from_ray(dataset, batch_size=2, places="cpu", shuffle=True)


@pytest.mark.ray
def test_two_workers_of_ray_train_learn_what_one_process_does(ray, monkeypatch, capsys):
    """In the Ray that runs already, and in this process, which has imported it."""
    pytest.importorskip("ray.train")
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, "--epochs", "1"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "40 steps over 4000 digits" in printed
    assert printed.endswith("the losses are the same\n")
