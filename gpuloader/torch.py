"""The names of ``torch.utils.data``, so that a PyTorch program runs after changing only its import line.

Replace ``from torch.utils.data import DataLoader`` with ``from gpuloader.torch import DataLoader``. PyTorch
is imported when it is first needed. Its names that this package does not have, such as ``DistributedSampler``
and ``StackDataset``, can be imported from here too, and are PyTorch's own.
"""

from typing import TYPE_CHECKING

if __name__ == "torch":
    from gpuloader.base.lazy import step_aside

    step_aside(__name__, __file__)
else:
    from gpuloader.base.lazy import import_on_demand
    from gpuloader.loader.torch_loader import DataLoader, default_collate, default_convert, random_split
    from gpuloader.order.batch_sampler import BatchSampler
    from gpuloader.order.sampler import Sampler, SequenceSampler
    from gpuloader.order.torch_samplers import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
    from gpuloader.order.worker_info import get_worker_info
    from gpuloader.sources.dataset import (
        ChainDataset,
        ConcatDataset,
        Dataset,
        IterableDataset,
        Subset,
        TensorDataset,
    )

    if TYPE_CHECKING:
        from torch.utils.data import DistributedSampler as DistributedSampler
        from torch.utils.data import StackDataset as StackDataset

    SequentialSampler = SequenceSampler

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

    __getattr__ = import_on_demand(
        __name__,
        dict.fromkeys(
            [
                "DFIterDataPipe",
                "DataChunk",
                "DistributedSampler",
                "IterDataPipe",
                "MapDataPipe",
                "StackDataset",
                "argument_validation",
                "functional_datapipe",
                "guaranteed_datapipes_determinism",
                "non_deterministic",
                "runtime_validation",
                "runtime_validation_disabled",
            ],
            "torch.utils.data",
        ),
    )
