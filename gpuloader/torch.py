"""The names of ``torch.utils.data``, so that a PyTorch program runs after changing only its import line.

Replace ``from torch.utils.data import DataLoader`` with ``from gpuloader.torch import DataLoader``. PyTorch
is imported when it is first needed. The samplers and the base classes ``Dataset`` and ``IterableDataset`` are
PyTorch's own, and the loader and the datasets here derive from PyTorch's. Names that this package does not
have, such as ``DistributedSampler`` and ``StackDataset``, can be imported from here too, and are PyTorch's.
So can its submodules: ``gpuloader.torch.dataset`` has the names of ``torch.utils.data.dataset``.
"""

if __name__ == "torch":
    from gpuloader.system.imports import step_aside

    step_aside(__name__, __file__)
else:
    import sys
    from importlib.util import find_spec

    from gpuloader.system.imports import import_on_demand

    __path__: list[str] = []  # makes Python look for submodules, which `system.imports` then makes
    _homes, __getattr__ = import_on_demand(__name__, __file__)
    # PyTorch's, and without it this package's.
    for _name in (
        "BatchSampler", "Dataset", "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler",
        "SubsetRandomSampler", "WeightedRandomSampler",
    ):  # fmt: skip
        _homes[_name] = "gpuloader.sources.torch_classes"
    # Without PyTorch, a star import does without its names.
    _has_torch = sys.modules.get("torch") or find_spec("torch")
    __all__ = sorted(name for name, home in _homes.items() if _has_torch or home.startswith("gpuloader"))
    # Its submodules, which star imports do not bring, as in PyTorch.
    _names = (
        "_utils",
        "datapipes",
        "dataloader",
        "dataset",
        "distributed",
        "graph",
        "graph_settings",
        "sampler",
    )
    for _name in _names if _has_torch else ():
        _homes[_name] = __name__
