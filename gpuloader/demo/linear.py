"""The demonstration's model: one linear layer from 784 pixels to a number, trained on the squared error.

It is the simplest model that learns from a batch, so that the demonstration measures the loading.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader.errors import DataFileError
from gpuloader.fields.ragged import array_module
from gpuloader.sources.mnist.digits import PIXELS


class LinearModel:
    """Predict ``images @ weight + bias`` and learn by stochastic gradient descent.

    The loss is ``mean((predictions - labels) ** 2)`` with plain broadcasting, which sets a trap.
    Predictions have shape (n, 1). Labels of shape (n, 1) are compared one to one. Labels of shape (n,) are
    broadcast: every prediction is compared with every label of the batch, n x n pairs. Nothing raises an
    error, and the loss falls at first. But it is smallest when every prediction is the batch's mean label,
    so it never falls below the variance of the labels, about 8.3 for MNIST. If the loss stays between 7 and
    10, this is the cause, and tuning the learning rate will not help.

    Parameters
    ----------
    learning_rate : float
        Step size, more than 0.
    seed : int
        Seed of the initial weights, which are drawn with NumPy so that they are equal on CPUs and GPUs.

    Attributes
    ----------
    weight : array of float32, shape (784, 1)
    bias : array of float32, shape (1,)
        Arrays of the last batch's library, on its device; NumPy arrays before the first batch.

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
        # Glorot's uniform range keeps the first predictions small for any number of pixels.
        limit = (6 / (PIXELS + 1)) ** 0.5
        drawn = np.random.default_rng(seed).uniform(-limit, limit, (PIXELS, 1))
        self.weight: Any = drawn.astype(np.float32)
        self.bias: Any = np.zeros(1, np.float32)

    def step(self, images: Any, labels: Any) -> Any:
        """Learn from one batch.

        Parameters
        ----------
        images : array of float32, shape (n, 784)
            Images from NumPy, CuPy, or another library that follows the array API standard.
        labels : array of float32, shape (n, 1)
            Labels of the same library and device. Shape (n,) is accepted too; see the trap described above.

        Returns
        -------
        array of float32, one number
            The loss before this step, on the batch's device. ``float(loss)`` waits for the device; the
            step itself does not.

        Raises
        ------
        ValueError
            The batch is empty, or the images do not have 784 pixels.
        """
        if images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
            raise ValueError(
                f"images must have shape (n, {PIXELS}) with n at least 1, got {images.shape}; "
                f"reshape the batch to (-1, {PIXELS})"
            )
        self._follow(images)
        errors = images @ self.weight + self.bias - labels
        loss = (errors * errors).mean()
        # If the labels were broadcast, each prediction has a whole row of errors.
        slopes = errors.sum(axis=1, keepdims=True) * (2 / errors.size)
        self.weight -= self.learning_rate * (images.T @ slopes)
        self.bias -= self.learning_rate * slopes.sum(axis=0)
        return loss

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the weight, bias and learning rate in ``.npz`` format.

        Parameters
        ----------
        path : path-like
            The file to write, with any suffix.
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
        """Load a model that `save` wrote.

        Parameters
        ----------
        path : path-like
            The file to read.

        Returns
        -------
        LinearModel
            A model that continues to train exactly as the saved one would have.

        Raises
        ------
        FileNotFoundError
            The file does not exist.
        DataFileError
            The file is not a saved model.
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
        """Convert the parameters to the batch's array library, if they are of another."""
        library = array_module(images)
        if array_module(self.weight) is not library:
            self.weight, self.bias = library.asarray(self.weight), library.asarray(self.bias)


def _foreign(path: str | os.PathLike[str], got: str) -> DataFileError:
    return DataFileError(
        f"{os.fspath(path)}: expected a saved model with float32 weight ({PIXELS}, 1), float32 bias (1,) and "
        f"a learning_rate, got {got}; save one with LinearModel.save"
    )


def _on_host(array: Any) -> Any:
    """Return the array as a NumPy array; CuPy arrays refuse implicit conversion."""
    return array.get() if hasattr(array, "get") else np.asarray(array)
