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

    `weight` has shape (784, 1) and `bias` shape (1,), both float32; they move to the library and device of
    the first batch. `seed` draws the first weights with NumPy, so that they are equal on CPUs and GPUs.

    The loss is ``mean((predictions - labels) ** 2)`` with plain broadcasting, which sets a trap.
    Predictions have shape (n, 1). Labels of shape (n,) broadcast against them to n x n pairs. Nothing raises
    an error, and the loss falls at first. But it is smallest when every prediction is the batch's mean label,
    so it never falls below the variance of the labels, about 8.3 for MNIST. If the loss stays between 7 and
    10, this is the cause, and tuning the learning rate will not help.

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
        """Learn from images (n, 784) and labels (n, 1); return the loss before this step, on their device.

        Raises `ValueError` if the batch is empty or the images do not have 784 pixels.
        """
        if images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
            raise ValueError(
                f"images must have shape (n, {PIXELS}) with n at least 1, got {images.shape}; "
                f"reshape the batch to (-1, {PIXELS})"
            )
        library = array_module(images)
        if array_module(self.weight) is not library:
            self.weight, self.bias = library.asarray(self.weight), library.asarray(self.bias)
        errors = images @ self.weight + self.bias - labels
        # The caller decides when to read the loss: on a GPU, float(loss) waits for the device.
        loss = (errors * errors).mean()
        # If the labels were broadcast, each prediction has a whole row of errors.
        slopes = errors.sum(axis=1, keepdims=True) * (2 / errors.size)
        self.weight -= self.learning_rate * (images.T @ slopes)
        self.bias -= self.learning_rate * slopes.sum(axis=0)
        return loss

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the weight, bias and learning rate in ``.npz`` format, to a file with any suffix."""
        # CuPy's arrays refuse an implicit conversion.
        weight, bias = (one.get() if hasattr(one, "get") else one for one in (self.weight, self.bias))
        # An open file, because savez appends .npz to a path that has another suffix.
        with Path(path).open("wb") as file:
            np.savez(file, allow_pickle=False, weight=weight, bias=bias, learning_rate=self.learning_rate)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearModel:
        """Return a model that continues to train exactly as the one that `save` wrote.

        Raises `FileNotFoundError`, or `DataFileError` if the file is not a saved model.
        """
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                weight, bias = arrays["weight"], arrays["bias"]
                learning_rate = float(arrays["learning_rate"])
                got = f"weight {weight.shape} {weight.dtype}, bias {bias.shape} {bias.dtype}"
        # What np.load raises for a file of another kind depends on the kind.
        except (ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            got = str(error)
        if got != f"weight ({PIXELS}, 1) float32, bias (1,) float32":
            raise DataFileError(
                f"{os.fspath(path)}: expected a saved model with float32 weight ({PIXELS}, 1), float32 bias "
                f"(1,) and a learning_rate, got {got}; save one with LinearModel.save"
            ) from None
        model = cls(learning_rate)
        model.weight, model.bias = weight, bias
        return model
