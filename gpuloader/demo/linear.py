"""The model of the demonstration: one linear layer from 784 pixels to a number, trained on the squared error.

It is the simplest thing that learns from a batch, so that what is measured is the loading.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader.base.errors import DataFileError
from gpuloader.fields.arrays import array_module
from gpuloader.sources.mnist.digits import PIXELS


class LinearModel:
    """Predict ``images @ weight + bias`` and learn by stochastic gradient descent.

    The loss is ``mean((predictions - labels) ** 2)`` with plain broadcasting, and there lies a trap.
    Predictions have shape (n, 1). Labels of shape (n, 1) are compared one to one. Labels of shape (n,) are
    broadcast: every prediction is compared with every label of the batch, n x n pairs. No error is
    raised and the loss falls at first, but the best answer to such a loss is the batch's mean label for
    every image, so it never falls below the variance of the labels, about 8.3 for MNIST. A loss that
    stays between 7 and 10 for ever is this, and not a learning rate to be tuned.

    Parameters
    ----------
    learning_rate : float
        Factor of the gradient in a step, more than 0.
    seed : int
        Of the initial weights, drawn with NumPy so that they are equal on a CPU and a GPU.

    Attributes
    ----------
    weight : array of float32, shape (784, 1)
    bias : array of float32, shape (1,)
        Arrays of the library and device of the last batch; of NumPy before the first.

    Examples
    --------
    >>> model = LinearModel()
    >>> images, labels = np.full((2, 784), 0.5, np.float32), np.array([[3], [5]], np.float32)
    >>> losses = [float(model.step(images, labels)) for _ in range(10)]
    >>> losses[-1] < losses[0]
    True
    """

    def __init__(self, learning_rate: float = 0.001, seed: int = 0) -> None:
        if not learning_rate > 0:
            raise ValueError(f"learning_rate must be more than 0, got {learning_rate!r}")
        self.learning_rate = learning_rate
        # Glorot's uniform range: predictions begin small whatever the number of pixels.
        limit = (6 / (PIXELS + 1)) ** 0.5
        drawn = np.random.default_rng(seed).uniform(-limit, limit, (PIXELS, 1))
        self.weight: Any = drawn.astype(np.float32)
        self.bias: Any = np.zeros(1, np.float32)

    def step(self, images: Any, labels: Any) -> Any:
        """Learn from one batch.

        Parameters
        ----------
        images : array of float32, shape (n, 784)
            From NumPy, CuPy, or another library of the array standard.
        labels : array of float32, shape (n, 1)
            Of the same library and device. Shape (n,) is taken too, and is the trap told of above.

        Returns
        -------
        array of float32, one number
            The loss before this step, on the batch's device. ``float(loss)`` waits for the device; the
            step itself does not.

        Raises
        ------
        ValueError
            The batch is empty, or images are not of 784 pixels.
        """
        if images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
            raise ValueError(
                f"images must have shape (n, {PIXELS}) with n of 1 or more, got {images.shape}; "
                f"reshape a batch to (-1, {PIXELS})"
            )
        self._follow(images)
        errors = images @ self.weight + self.bias - labels
        loss = (errors * errors).mean()
        # Where labels were broadcast, a prediction takes part in a whole row of errors.
        slopes = errors.sum(axis=1, keepdims=True) * (2 / errors.size)
        self.weight -= self.learning_rate * (images.T @ slopes)
        self.bias -= self.learning_rate * slopes.sum(axis=0)
        return loss

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weight, bias and learning rate to `path`, as an ``.npz`` file whatever its name.

        Parameters
        ----------
        path : path-like
        """
        with Path(path).open("wb") as file:
            np.savez(
                file,
                weight=_on_host(self.weight),
                bias=_on_host(self.bias),
                learning_rate=np.float64(self.learning_rate),
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearModel:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : path-like

        Returns
        -------
        LinearModel
            It goes on as the saved one would have.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        DataFileError
            It holds something else.
        """
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                weight, bias = arrays["weight"], arrays["bias"]
                learning_rate = float(arrays["learning_rate"])
        except (ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise _foreign(path, str(error)) from None
        if (
            weight.shape != (PIXELS, 1)
            or bias.shape != (1,)
            or {weight.dtype, bias.dtype} != {np.dtype(np.float32)}
        ):
            raise _foreign(path, f"weight {weight.shape} {weight.dtype}, bias {bias.shape} {bias.dtype}")
        model = cls(learning_rate)
        model.weight, model.bias = weight, bias
        return model

    def _follow(self, images: Any) -> None:
        """Move the parameters to the array library of the batch, if they are not there."""
        library = array_module(images)
        if array_module(self.weight) is not library:
            self.weight, self.bias = library.asarray(self.weight), library.asarray(self.bias)


def _foreign(path: str | os.PathLike[str], got: str) -> DataFileError:
    return DataFileError(
        f"{os.fspath(path)}: expected a saved model, weight ({PIXELS}, 1) and bias (1,) of float32 and a "
        f"learning_rate, got {got}; save one with LinearModel.save"
    )


def _on_host(array: Any) -> Any:
    """Return the array as NumPy's; CuPy's own arrays refuse to be converted in silence."""
    return array.get() if hasattr(array, "get") else np.asarray(array)
