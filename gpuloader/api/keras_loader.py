"""The contents of `gpuloader.keras`: a loader that Keras takes as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from gpuloader.api import loader as dataset_loader
from gpuloader.api.loading import Framework
from gpuloader.api.options import Options
from gpuloader.errors import MissingPackage
from gpuloader.sources.dataset import Readable, S

_BACKENDS = ("torch", "jax")


class DataLoader(dataset_loader.DataLoader[S]):
    """A `gpuloader.DataLoader` that Keras 3 takes for ``fit``, ``evaluate`` and ``predict``.

    A sample is a tuple ``(x, y)``, ``(x, y, sample_weight)`` or ``(x,)``, or an `x` that is a dict or an
    array. With `shard` and ``uneven='pad'``, the mask of the samples that count becomes the sample weights.

    Parameters
    ----------
    dataset : object
        A map-style or iterable dataset, or a table.
    output : str or None
        The library whose arrays make up a batch; None takes that of Keras's backend.
    **options
        The other options of `gpuloader.DataLoader`, such as ``batch_size``, ``shuffle`` or ``num_workers``.

    Raises
    ------
    MissingPackage
        Keras is not installed.
    ValueError
        Keras's backend is neither PyTorch nor JAX, or ``static=True`` was passed.

    Notes
    -----
    Before its first epoch, Keras takes one batch to build a model. The loader gives it this batch again as
    the first one of the epoch, so ``fit`` reads the loader's epochs 0, 1, 2, … whole and in order. Only an
    epoch of a single batch is lost that way.

    Keras ignores ``y``, ``sample_weight`` and ``class_weight`` for such data, without an error. Yield sample
    weights instead, or draw with a `WeightedRandomSampler`.

    Examples
    --------
    >>> import pytest
    >>> keras = pytest.importorskip("keras")
    >>> import numpy as np
    >>> from gpuloader.keras import DataLoader
    >>> dataset = [(np.float32([x]), np.float32([2 * x])) for x in range(8)]
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer="sgd", loss="mse")
    >>> history = model.fit(DataLoader(dataset, places="cpu", batch_size=4), epochs=3, verbose=0)
    >>> len(history.history["loss"])
    3
    """

    _begun: tuple[Any, Iterator[Any]] | None = None
    """A pass that Keras has taken only the first batch from, and that batch."""

    def __init__(
        self, dataset: Readable[S] | Iterable[S], *, output: str | None = None, **options: Any
    ) -> None:
        if options.get("static"):
            raise ValueError(
                "static=True does not work with Keras, which takes one batch before the epoch and computes "
                "with it again; leave static out"
            )
        super().__init__(dataset, output=_find_output() if output is None else output, **options)

    def _open(self, options: Options, framework: Framework | None = None) -> None:
        # Also become one of Keras's data adapters, because `fit` recognizes data by their class.
        self.__class__ = _as_adapter(type(self))  # type: ignore[arg-type]
        super()._open(options, framework)

    @property
    def num_batches(self) -> int | None:
        """Batches per epoch; None if the dataset has no length."""
        try:
            return len(self)
        except TypeError:
            return None

    # None: Keras then accepts batches of any size.
    has_partial_batch = partial_batch_size = None

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Yield the batches of a pass as Keras expects them. Keras calls this, sometimes without reading."""
        # Keras takes one batch to build a model and drops that iterator. The batch is the first one of the
        # next epoch, so it is kept, with the rest of its pass, until somebody takes a second batch.
        begun, self._begun = self._begun, None
        first, batches = begun or (None, iter(()))
        for _ in range(2):  # a loaded state may be the end of an epoch, and Keras expects a batch
            if first is None:
                batches = map(_as_data, iter(self))
                first = next(batches, None)
        if first is None:
            return
        # A single batch may have been the epoch or only a first look at it; nothing tells which.
        if self.num_batches != 1:
            self._begun = first, batches
        yield first
        self._begun = None
        yield from batches

    def get_jax_iterator(self) -> Iterator[Any]:
        """Yield the batches of a pass, for the JAX or the PyTorch backend."""
        return self.get_numpy_iterator()  # a subclass may override that one

    get_torch_dataloader = get_jax_iterator

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state["own"].pop("_begun", None)
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        # The adapter's class is made along with a loader, so no module contains it.
        named = type(self).__mro__[1]  # the class without Keras's, which can be pickled
        return _make, (named,), self.__getstate__()


def _make(kind: type[DataLoader[Any]]) -> DataLoader[Any]:
    return kind.__new__(kind)


@cache
def _as_adapter(kind: type) -> type:
    """Return a class derived from a loader's, and from the class of Keras's data adapters."""
    try:
        from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        raise MissingPackage("gpuloader.keras needs keras: pip install keras", name="keras") from None
    return type(kind.__name__, (kind, DataAdapter), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def _find_output() -> str:
    """Return the `output` for Keras's backend."""
    from keras import backend

    name: str = backend.backend()
    if name not in _BACKENDS:
        raise ValueError(
            f"gpuloader.keras works with the backends {' and '.join(_BACKENDS)} of Keras, not with {name}; "
            "set the environment variable KERAS_BACKEND before Keras is imported"
        )
    return name


def _as_data(batch: Any) -> Any:
    """Return a batch with a tuple at the top, because Keras takes a list for a single input."""
    if not isinstance(batch, list):
        return batch
    # `(x, y, None)` has no weights, for Keras; by identity, since tensors are not equal to None but raise.
    return tuple(None if isinstance(one, list) and {*map(id, one)} == {id(None)} else one for one in batch)
