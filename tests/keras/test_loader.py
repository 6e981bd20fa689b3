"""Tests of `gpuloader.keras` with Keras itself; ``KERAS_BACKEND`` chooses the backend."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuloader
from gpuloader import IterableDataset, TableDataset, WorkerError
from gpuloader.errors import SampleError
from gpuloader.keras import DataLoader
from tests.sample_sets import Made

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10)
PAIRS = list(zip(X, Y, strict=True))


class Noting(DataLoader):
    """A loader that notes the batches that Keras takes."""

    def __init__(self, dataset=PAIRS, **options):
        self.taken = []
        super().__init__(dataset, **{"places": "cpu", "batch_size": 4, **options})

    def get_numpy_iterator(self):
        for batch in super().get_numpy_iterator():
            self.taken.append(numbers(batch))
            yield batch


def numbers(batch):
    return np.asarray(batch[1]).tolist()


def load(dataset=PAIRS, **options):
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 4, **options})


def epochs(count, **options):
    """Return what the first epochs consist of."""
    return [numbers(batch) for loader in [load(**options)] * count for batch in loader]


SHUFFLED = {"shuffle": True, "seed": 3}


def fit(dataset, **options):
    """Fit a new model, and return its losses."""
    return make_model().fit(dataset, verbose=0, **options).history["loss"]


def make_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    # Operation by operation, since JAX would compile the step of each model for a second.
    model.compile(optimizer=keras.optimizers.SGD(0.001), loss="mse", run_eagerly=True)
    return model


@pytest.mark.parametrize("workers", [0, 2])
def test_fit_learns_what_it_learns_from_arrays(workers):
    model, other = make_model(), make_model()
    ours = model.fit(load(num_workers=workers), epochs=3, verbose=0, validation_data=load())
    theirs = other.fit(X, Y, batch_size=4, shuffle=False, epochs=3, verbose=0, validation_data=(X, Y))
    for name, losses in ours.history.items():
        np.testing.assert_allclose(losses, theirs.history[name], rtol=1e-4)
    np.testing.assert_allclose(model.evaluate(load(), verbose=0), other.evaluate(X, Y, verbose=0), rtol=1e-4)
    np.testing.assert_allclose(model.predict(load(), verbose=0), other.predict(X, verbose=0), rtol=1e-4)


def test_epochs_are_whole_and_in_the_order_of_the_loader():
    loader = Noting(**SHUFFLED)
    fit(loader, epochs=3)
    first, *others = loader.taken
    assert others == epochs(3, **SHUFFLED)
    assert first == others[0]  # to build the model


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("left", [0, 1])
def test_a_resumed_loader_reads_what_is_left(left):
    first, loader = Noting(**SHUFFLED), Noting(shuffle=True)
    fit(first, steps_per_epoch=3 - left)
    loader.load_state_dict(first.state_dict())
    fit(loader, epochs=2)
    assert loader.taken[1:] == epochs(3 - (left > 0), **SHUFFLED)[3 - left :]


def test_fit_again_goes_on_with_the_next_epoch():
    model, loader = make_model(), Noting(**SHUFFLED)
    for _ in range(2):
        model.fit(loader, verbose=0)
    assert loader.taken[1:] == epochs(2, **SHUFFLED)


def test_steps_per_epoch_may_be_less_than_an_epoch():
    loader = Noting()
    fit(loader, epochs=3, steps_per_epoch=1)
    assert loader.taken[1:] == epochs(1)


def test_epochs_of_one_batch_differ():
    loader = Noting(batch_size=10, **SHUFFLED)
    fit(loader, epochs=3)
    assert loader.taken == epochs(4, batch_size=10, **SHUFFLED)


def test_sample_weights_are_the_third_field():
    weights = np.arange(10, dtype=np.float32)
    ours = fit(load(list(zip(X, Y, weights, strict=True))), epochs=2)
    theirs = fit(X, y=Y, sample_weight=weights, batch_size=4, shuffle=False, epochs=2)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_none_in_place_of_weights_gives_no_weights():
    ours = fit(load([(x, y, None) for x, y in PAIRS]), epochs=2)
    assert ours == fit(load(), epochs=2)


def test_samples_that_fill_up_a_rank_have_no_weight():
    loader = load(shard=(1, 2), seed=0, batch_size=3)
    assert {len(batch) for batch in loader.get_numpy_iterator()} == {2}  # 10 samples fill both ranks
    options = {"shard": (1, 2), "seed": 0, "batch_size": 7}
    ((_, _, mask),) = load(PAIRS[:9], **options).get_numpy_iterator()
    assert np.asarray(mask).tolist() == [True] * 4 + [False]
    ours, theirs = fit(load(PAIRS[:9], **options)), fit(X[5:9], y=Y[5:9])
    np.testing.assert_allclose(ours[0] * 5, theirs[0] * 4, rtol=1e-4)  # Keras divides by the batch size


def test_dicts_are_inputs_by_name():
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    model = keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(keras.layers.concatenate([a, b])))
    model.compile(optimizer="sgd", loss="mse")
    dataset = [({"a": np.float32([x]), "b": np.float32([1])}, np.float32([2 * x])) for x in range(8)]
    assert len(model.fit(load(dataset), epochs=2, verbose=0).history["loss"]) == 2
    table = TableDataset({"a": X[:, :1], "b": X[:, 1:]})
    assert model.predict(load(table), verbose=0).shape == (10, 1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(PAIRS)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_iterable_datasets():
    loader = Noting(Stream())
    fit(loader, epochs=2)
    assert loader.taken[1:] == epochs(2)


def test_errors_of_the_dataset_reach_the_caller():
    broken = Made(lambda index: PAIRS[index] if index != 5 else 1 / 0, 8)
    with pytest.raises((SampleError, WorkerError), match="batch 1, sample 1, dataset index 5"):
        fit(load(broken))


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_copies_are_loaders_for_keras(make):
    loader = load(**SHUFFLED)
    next(loader.get_numpy_iterator())
    other = make(loader)
    assert isinstance(other, DataLoader)
    assert len(fit(other)) == 1
    assert [numbers(batch) for batch in make(loader)] == epochs(1, **SHUFFLED)


def test_subclasses_are_loaders_for_keras():
    class Mine(DataLoader):
        def __init__(self, dataset):
            super().__init__(dataset, places="cpu", batch_size=5)

    loader = Mine(PAIRS)
    assert repr(loader).startswith("<Mine: list of 10 samples; batches of 5;")
    assert len(fit(loader)) == 1


def test_batches_are_of_the_backends_library():
    for field in next(iter(load())):
        assert type(field).__module__.startswith(keras.backend.backend())


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "tensorflow")
    message = "works with the backends torch and jax of Keras, not with tensorflow"
    with pytest.raises(ValueError, match=message):
        load()


def test_in_the_packages_folder_import_keras_finds_keras():
    """Python then looks for modules there first, and finds keras.py."""
    folder = Path(gpuloader.__file__).parent
    code = "import keras; from gpuloader.keras import DataLoader; print(keras.layers.Dense.__name__)"
    # Of the backends, NumPy is imported in the least time.
    environment = {**os.environ, "PYTHONPATH": str(folder.parent), "KERAS_BACKEND": "numpy"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "Dense\n", done.stderr
