"""The names of ``torch.utils.data``, so that a PyTorch program runs after changing only its import line.

Replace ``from torch.utils.data import DataLoader`` with ``from gpuloader.torch import DataLoader``. PyTorch
is imported when it is first needed. The samplers and the base classes ``Dataset`` and ``IterableDataset`` are
PyTorch's own, and the loader and the datasets here derive from PyTorch's. Names that this package does not
have, such as ``DistributedSampler`` and ``StackDataset``, can be imported from here too, and are PyTorch's.
"""

from typing import TYPE_CHECKING

if __name__ == "torch":
    from gpuloader.system.lazy_imports import step_aside

    step_aside(__name__, __file__)
else:
    from gpuloader.order.worker_info import get_worker_info
    from gpuloader.system.lazy_imports import import_on_demand

    if TYPE_CHECKING:
        from torch.utils.data import BatchSampler as BatchSampler
        from torch.utils.data import Dataset as Dataset
        from torch.utils.data import DistributedSampler as DistributedSampler
        from torch.utils.data import IterableDataset as IterableDataset
        from torch.utils.data import RandomSampler as RandomSampler
        from torch.utils.data import Sampler as Sampler
        from torch.utils.data import SequentialSampler as SequentialSampler
        from torch.utils.data import StackDataset as StackDataset
        from torch.utils.data import SubsetRandomSampler as SubsetRandomSampler
        from torch.utils.data import WeightedRandomSampler as WeightedRandomSampler

        from gpuloader.api.torch_loader import DataLoader, default_collate, default_convert, random_split
        from gpuloader.sources.torch_classes import ChainDataset, ConcatDataset, Subset, TensorDataset

    __all__ = [
        "BatchSampler",
        "ChainDataset",
        "ConcatDataset",
        "DataLoader",
        "Dataset",
        "IterableDataset",
        "RandomSampler",
        "Sampler",
        "SequentialSampler",
        "Subset",
        "SubsetRandomSampler",
        "TensorDataset",
        "WeightedRandomSampler",
        "default_collate",
        "default_convert",
        "get_worker_info",
        "random_split",
    ]

    _PYTORCHS = """DFIterDataPipe DataChunk DistributedSampler IterDataPipe MapDataPipe StackDataset
    argument_validation functional_datapipe guaranteed_datapipes_determinism non_deterministic
    runtime_validation runtime_validation_disabled"""
    _homes = dict.fromkeys(__all__, "gpuloader.sources.torch_classes")
    for _name in ("DataLoader", "default_collate", "default_convert", "random_split"):
        _homes[_name] = "gpuloader.api.torch_loader"
    _homes |= dict.fromkeys(_PYTORCHS.split(), "torch.utils.data")
    __getattr__ = import_on_demand(__name__, _homes)
