"""Transforms: computations on the fields of a batch, on the device that the batch is for.

In: a batch's staged fields, on the host or on a device.
Out: the transformed fields, in the same slot; GPU and CPU results agree bit for bit.
Callers: users create transforms; `api` plans them, and `batches` (CPU places) and `devices` (GPUs) run them.

On a GPU, transforms are kernels on a stream of their own, behind the copy, so only the small raw values
cross the bus. On a CPU place, their NumPy twins run where the batch is fetched. Random draws depend only on
the loader's seed, the epoch and the sample's index.

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

from typing import TYPE_CHECKING

from gpuloader.system.lazy_imports import import_on_demand

if TYPE_CHECKING:
    from gpuloader.sources.images.annotations import Boxes as Boxes
    from gpuloader.sources.images.annotations import Keypoints as Keypoints
    from gpuloader.sources.images.annotations import Mask as Mask
    from gpuloader.transforms.batch_transforms import Normalize as Normalize
    from gpuloader.transforms.batch_transforms import RandomCropFlip as RandomCropFlip
    from gpuloader.transforms.batch_transforms import RandomErasing as RandomErasing
    from gpuloader.transforms.image_transforms import CenterCrop as CenterCrop
    from gpuloader.transforms.image_transforms import ColorJitter as ColorJitter
    from gpuloader.transforms.image_transforms import PadImage as PadImage
    from gpuloader.transforms.image_transforms import RandomAffine as RandomAffine
    from gpuloader.transforms.image_transforms import RandomFlip as RandomFlip
    from gpuloader.transforms.image_transforms import RandomResizedCrop as RandomResizedCrop
    from gpuloader.transforms.image_transforms import Resize as Resize
    from gpuloader.transforms.mixing import CutMix as CutMix
    from gpuloader.transforms.mixing import MixUp as MixUp
    from gpuloader.transforms.values import Cast as Cast
    from gpuloader.transforms.values import OneHot as OneHot
    from gpuloader.transforms.values import Pad as Pad

_HOMES = {
    "gpuloader.sources.images.annotations": "Boxes Keypoints Mask",
    "gpuloader.transforms.batch_transforms": "Normalize RandomCropFlip RandomErasing",
    "gpuloader.transforms.image_transforms": (
        "CenterCrop ColorJitter PadImage RandomAffine RandomFlip RandomResizedCrop Resize"
    ),
    "gpuloader.transforms.mixing": "CutMix MixUp",
    "gpuloader.transforms.values": "Cast OneHot Pad",
}

__all__ = sorted(" ".join(_HOMES.values()).split())

# On demand, because the kernels of batches take a while to import.
__getattr__ = import_on_demand(__name__, _HOMES)
