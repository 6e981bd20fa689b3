"""What `gpuloader.torch` has of its own: a loader, a split and collate functions like those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from numpy.typing import ArrayLike

from gpuloader.api import loader as dataset_loader
from gpuloader.api.epochs import UpcomingBatches
from gpuloader.api.loading import Framework
from gpuloader.order.randomness import GeneratorLike, draw_seed
from gpuloader.order.samplers import Sampler
from gpuloader.sources import dataset as dataset_subset
from gpuloader.sources.dataset import MapStyle, Readable, S, Subset


def _make_sampler(dataset: Any, shuffle: bool) -> Sampler[int]:
    # Imported late, like all of PyTorch here: `import gpuloader.torch` is to be fast.
    from gpuloader.sources.torch_classes import make_sampler

    return make_sampler(dataset, shuffle)


def _draw_seed() -> int:
    import torch

    return draw_seed(torch.default_generator)


class DataLoader(dataset_loader.DataLoader[S]):
    """A `gpuloader.DataLoader` with the parameters, defaults and results of ``torch.utils.data.DataLoader``.

    Batches are tensors of PyTorch in host memory, so a program that moves them to a device runs unchanged.
    With ``places="cuda"`` they arrive on the GPU; then delete ``.to(device)``.

    Parameters of PyTorch's loader mean what they mean there, except for those below, and those of workers are
    ignored without workers.

    Parameters
    ----------
    num_workers : int or 'auto'
        'auto' finds the number of worker processes; see `gpuloader.DataLoader`.
    pin_memory, pin_memory_device : bool and str
        Accepted, without effect: batches for a GPU are always copied from page-locked memory.
    generator : torch.Generator or None
        Gives the loader its seed, which is drawn once, when the loader is made. None draws the seed from
        PyTorch's global generator at the first epoch, so that ``torch.manual_seed`` determines it.
    places : place, str, torch.device, or list of them, or None
        Where batches land; None uses the first GPU, or host memory if there is none.
    output : str or None
        The library whose arrays make up a batch.
    shard : str, tuple of int or None
        'auto' divides a map-style dataset among the ranks of a distributed run, as Lightning and Accelerate
        do for PyTorch's loader, and `batch_size` counts for each rank. If neither a seed nor a generator was
        passed, all ranks then shuffle with the seed 0. A sampler or batch sampler that divides already, such
        as a ``DistributedSampler``, stays as it is, and so do iterable datasets. One that may differ between
        ranks is not divided either, with a warning. A pair (rank, world size) insists. None never divides.
    uneven : str
        How to divide an incomplete last step: 'repeat' fills it up with the first samples, as PyTorch's
        ``DistributedSampler`` does; 'drop', 'pad' and 'error' are those of `gpuloader.DataLoader`.
    **options
        Other options of `gpuloader.DataLoader`, such as ``seed``, ``cache`` or ``transforms``. The default of
        ``use_buffer_reader`` is False: without workers, the calling thread reads, as in PyTorch.

    Raises
    ------
    ValueError
        Options exclude each other, or a value is out of range.
    TypeError
        A value has the wrong type, or an option does not exist.
    ImportError
        PyTorch is not installed.

    Examples
    --------
    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> from gpuloader.torch import DataLoader, TensorDataset  # was: from torch.utils.data import …
    >>> dataset = TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([7, 8, 9]))
    >>> for images, labels in DataLoader(dataset, 2, num_workers=2, pin_memory=True):
    ...     print(tuple(images.shape), labels)
    (2, 2) tensor([7, 8])
    (1, 2) tensor([9])
    """

    _framework = Framework(_make_sampler, _draw_seed, divides_if_possible=True)

    def __init__(
        self,
        dataset: Readable[S] | Iterable[S],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: Any = None,
        generator: GeneratorLike = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        places: Any = "cpu",
        output: str | None = "torch",
        shard: str | tuple[int, int] | None = "auto",
        uneven: str = "repeat",
        **options: Any,
    ) -> None:
        # As in PyTorch, so that a mistake there is one here. `gpuloader.DataLoader` lets both pass.
        if persistent_workers and not num_workers:
            raise ValueError("persistent_workers needs num_workers of 1 or more")
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None yields single samples: there is no last batch to drop")
        # PyTorch reads without workers in the calling thread, and datasets may count on that.
        options = {"use_buffer_reader": False, **options}
        # fmt: off
        super().__init__(
            dataset, batch_size=batch_size, shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler,
            num_workers=num_workers, collate_fn=collate_fn, pin_memory=pin_memory, drop_last=drop_last,
            timeout=timeout, worker_init_fn=worker_init_fn, generator=generator,
            multiprocessing_context=multiprocessing_context, prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers, pin_memory_device=pin_memory_device, in_order=in_order,
            places=places, output=output, shard=shard, uneven=uneven, **options,
        )
        # fmt: on

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """The function that was passed, or PyTorch's function for what the loader does by itself."""
        function = super().collate_fn
        # Trainers copy loaders by their attributes, and call this function themselves.
        if function is None:
            return (
                default_convert if self.batch_size is None and self.batch_sampler is None else default_collate
            )
        return function

    @staticmethod
    def _upcoming_batches() -> type[UpcomingBatches]:
        return _make_upcoming_batches()


@cache  # one class, so that the types of two loaders' batch samplers are equal
def _make_upcoming_batches() -> type[UpcomingBatches]:
    """Return the batch sampler of a loader, as a class that is also PyTorch's ``BatchSampler``."""
    from gpuloader.sources.torch_classes import BatchSampler

    members = {"__module__": __name__, "__doc__": UpcomingBatches.__doc__, "_plain": BatchSampler}
    return type("UpcomingBatches", (UpcomingBatches, BatchSampler), members)


def default_collate(samples: Sequence[Any]) -> Any:
    """Return the batch that PyTorch's own ``default_collate`` makes of a list of samples.

    A loader without a ``collate_fn`` collates by itself, with the same results but faster. Use this function
    inside your own ``collate_fn``, for example after sorting or padding the samples.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> default_collate([{"label": 1, "name": "cat"}, {"label": 2, "name": "dog"}])
    {'label': tensor([1, 2]), 'name': ['cat', 'dog']}
    """
    from torch.utils.data import default_collate

    return default_collate(samples)


def default_convert(sample: Any) -> Any:
    """Return a sample with PyTorch's tensors in place of NumPy's arrays, as ``batch_size=None`` does.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("torch")
    >>> default_convert({"image": np.zeros(2, "float32"), "name": "cat"})
    {'image': tensor([0., 0.]), 'name': 'cat'}
    """
    from torch.utils.data import default_convert

    return default_convert(sample)


def random_split(
    dataset: MapStyle[S],
    lengths: Sequence[float],
    generator: int | GeneratorLike = None,
    *,
    seed: int | None = None,
    stratify: ArrayLike | None = None,
) -> list[Subset[S]]:
    """Split a dataset at random, into the same parts as ``torch.utils.data.random_split``.

    Parameters, errors and results are those of `gpuloader.random_split`, except that without a generator or
    seed PyTorch's global generator is used, so that ``torch.manual_seed`` determines the parts.

    Examples
    --------
    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> _ = torch.manual_seed(0)
    >>> train, test = random_split(range(5), [0.8, 0.2])
    >>> list(train), list(test)
    ([4, 0, 1, 3], [2])
    """
    if generator is None and seed is None:
        import torch

        generator = torch.default_generator
    from gpuloader.sources.torch_classes import Subset

    parts = dataset_subset.random_split(dataset, lengths, generator, seed=seed, stratify=stratify)
    return [Subset(dataset, part.indices) for part in parts]
