"""Transforms: computations on the fields of a batch, on the device that the batch is for.

In: a batch's staged fields, on the host or on a device.
Out: the transformed fields, in the same slot; GPU and CPU results agree bit for bit.
Callers: users create transforms; `api` plans them, and `batches` (CPU places) and `devices` (GPUs) run them.

On a GPU, transforms are kernels on a separate stream, behind the copy, so only the small raw values cross the
bus. On a CPU place, their NumPy twins run where the batch is fetched. Random draws depend only on the
loader's seed, the epoch and the sample's index.

>>> import numpy as np
>>> from gpuloader import DataLoader, TensorDataset
>>> from gpuloader.transforms import Normalize, OneHot, RandomCropFlip
>>> dataset = TensorDataset(np.full((4, 8, 8, 3), 255, "uint8"), np.array([0, 2, 1, 1]))
>>> steps = [RandomCropFlip("0", (6, 6)), Normalize("0", mean=0.5, std=0.5, scale=1 / 255), OneHot("1", 3)]
>>> loader = DataLoader(dataset, places="cpu", batch_size=2, transforms=steps)
>>> for images, labels in loader:
...     print(images.shape, images.dtype, round(float(images.max()), 5), labels.tolist())
(2, 3, 6, 6) float32 1.0 [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
(2, 3, 6, 6) float32 1.0 [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
"""

from gpuloader.system.imports import import_on_demand

# On demand, because the kernels of batches take a while to import.
_homes, __getattr__ = import_on_demand(__name__, __file__)

__all__ = sorted(_homes)
