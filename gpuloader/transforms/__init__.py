"""Transforms: computations on the fields of a batch, on the device that the batch is for.

In: a batch's staged fields, on the host or on a device.
Out: the transformed fields, in the same slot; GPU and CPU results agree bit for bit.
Callers: users create transforms; `collate` (CPU places), `devices` (GPUs) and `loader` run them.

On a GPU, transforms are kernels on the copy stream, directly after the copy, so only the small raw values
cross the bus. On a CPU place, their NumPy twins run where the batch is fetched. Random draws depend only on
the loader's seed, the epoch and the sample's index.

>>> import numpy as np
>>> from gpuloader import DataLoader, TensorDataset
>>> from gpuloader.transforms import Normalize, OneHot, RandomCropFlip
>>> pictures = TensorDataset(np.full((4, 8, 8, 3), 255, "uint8"), np.array([0, 2, 1, 1]))
>>> steps = [RandomCropFlip("0", (6, 6)), Normalize("0", mean=0.5, std=0.5, scale=1 / 255), OneHot("1", 3)]
>>> loader = DataLoader(pictures, places="cpu", batch_size=2, transforms=steps)
>>> for images, labels in loader:
...     print(images.shape, images.dtype, round(float(images.max()), 5), labels.tolist())
(2, 3, 6, 6) float32 1.0 [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
(2, 3, 6, 6) float32 1.0 [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuloader.transforms.pictures import Normalize, RandomCropFlip
    from gpuloader.transforms.values import Cast, OneHot, Pad

__all__ = ["Cast", "Normalize", "OneHot", "Pad", "RandomCropFlip"]

_MODULES = {
    "Cast": "values",
    "Normalize": "pictures",
    "OneHot": "values",
    "Pad": "values",
    "RandomCropFlip": "pictures",
}


def __getattr__(name: str) -> Any:
    """Import a transform when it is first accessed, because importing its kernels takes a while."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
