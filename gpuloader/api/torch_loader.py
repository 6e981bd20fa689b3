"""What is specific to `gpuloader.torch`: a loader and a split like those of PyTorch."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import ArrayLike

from gpuloader.api import loader as dataset_loader
from gpuloader.api.loading import Framework
from gpuloader.api.options import Options
from gpuloader.api.prepared_loader import PreparedLoader
from gpuloader.batches.rows import SAMPLE_TYPES
from gpuloader.batches.schema import Fallback
from gpuloader.checks import AUTO
from gpuloader.epoch.epoch import Iteration
from gpuloader.errors import warn
from gpuloader.foreign import has_own_class, is_instance, is_tensor, is_torch_generator, name_table
from gpuloader.order.randomness import GeneratorLike
from gpuloader.order.worker_info import get_worker_info
from gpuloader.sources import dataset as datasets
from gpuloader.sources.dataset import MapStyle, Readable, S
from gpuloader.sources.torch_classes import LikeTorchs, Subset

try:
    from torch import Tensor, empty, int64
    from torch.autograd import _profiler_enabled
    from torch.autograd.profiler import record_function
    from torch.utils.data import BatchSampler as TorchBatchSampler
    from torch.utils.data import DataLoader as TorchLoader
    from torch.utils.data import RandomSampler, SequentialSampler, default_collate, default_convert
    from torch.utils.data.dataloader import _DatasetKind, _InfiniteConstantSampler
except ImportError:
    Tensor = empty = int64 = TorchBatchSampler = TorchLoader = RandomSampler = SequentialSampler = object
    _DatasetKind = _InfiniteConstantSampler = default_collate = default_convert = object
    _profiler_enabled = record_function = object

P = ParamSpec("P")


def _make_sampler(dataset: Any, shuffle: bool, generator: Any) -> Any:
    return RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)


def _needs_default_collate(sample: Any) -> bool:
    """Return whether PyTorch's function would make something other than rows of numbers from such samples."""
    module, own = _collate_functions()
    # If the user has registered any, another function is there.
    return bool(module.default_collate_fn_map != own) or not _is_plain(sample)


@cache
def _collate_functions() -> tuple[Any, dict[Any, Any]]:
    """Return PyTorch's module of collate functions, and the functions that are its own."""
    module: Any = importlib.import_module("torch.utils.data._utils.collate")
    functions = module.default_collate_fn_map
    return module, {kind: one for kind, one in functions.items() if one.__module__ == module.__name__}


_PLAIN = frozenset((np.ndarray, np.memmap, int, float, str, bool, bytes))


def _is_plain(sample: Any) -> bool:
    kind: type = type(sample)
    if kind is int:
        return bool(-(2**63) <= sample < 2**63)  # PyTorch's function refuses others
    if isinstance(sample, SAMPLE_TYPES):  # first: it is asked for each batch, and the others take longer
        return all(map(_is_plain, sample))
    if kind in _PLAIN:
        if not isinstance(sample, np.ndarray):
            return True
        is_other = sample.dtype.names is not None or sample.dtype.char in "gG"  # no long doubles in PyTorch
        return not is_other and (sample.ndim < 4 or _makes_rows(sample.strides))
    if kind is Tensor or is_tensor(sample):
        # Rows take the values of a Parameter, with the warning for any tensor that requires a gradient.
        is_other = (kind is not Tensor and has_own_class(sample)) or sample.is_meta
        return not is_other and (sample.ndim < 4 or _makes_rows(sample.stride()))
    if kind is dict or isinstance(sample, Mapping):
        return all(map(_is_plain, sample.values()))
    return isinstance(sample, str) or not isinstance(sample, np.ndarray | np.void | np.longdouble | Sequence)


def _makes_rows(strides: Sequence[int]) -> bool:
    """Return whether PyTorch's function makes a batch in C order of samples of four or more dimensions."""
    # It joins them by their first dimension, and so takes four and five dimensions for images in the format
    # channels_last, if the second one has the smallest stride. In a worker it does not ask, because the
    # batch's memory is laid out before.
    return len(strides) > 5 or not 0 < strides[1] == min(strides) or get_worker_info() is not None


@cache
def _find_pin() -> Callable[[Any], Any]:
    """Return PyTorch's own function, which also pins what has a method `pin_memory`; none without a GPU."""
    # Not in our slots: PyTorch's allocator knows which copies to a GPU still read a tensor that was dropped.
    if not importlib.import_module("torch").cuda.is_available():
        return lambda batch: batch
    pin: Callable[[Any], Any] = importlib.import_module("torch.utils.data._utils.pin_memory").pin_memory
    return pin


def _find_grouping(batches: object) -> tuple[object, object, int] | None:
    """Return what a batch sampler groups by, whose indices and how many, to see if a program changes it."""
    if not isinstance(batches, TorchBatchSampler | dataset_loader.UpcomingBatches):
        return None
    # A class that does not call PyTorch's `__init__`, as Accelerate's, may lack them.
    size, drop_last, grouped = [getattr(batches, name, None) for name in _OF_BATCHES]
    return size, drop_last, id(grouped)


class TorchIteration(Iteration):
    """An iterator each of whose steps is an event in PyTorch's profiler, as with PyTorch's loader."""

    def __next__(self) -> Any:
        if not _profiler_enabled():  # asked, because an event that nobody records takes 3 µs
            return super().__next__()
        with record_function("enumerate(DataLoader)#TorchIteration.__next__"):
            return super().__next__()


class _Computed(property):
    """An attribute that the base class computes, unless `vars(loader)` has a value other than 'auto'."""

    def __get__(self, loader: Any, owner: type | None = None) -> Any:
        shown = AUTO if loader is None else vars(loader).get(self.fget.__name__, AUTO)  # type: ignore[union-attr]
        return super().__get__(loader, owner) if shown is AUTO else shown

    def __set__(self, loader: Any, value: Any) -> None:
        vars(loader)[self.fget.__name__] = value  # type: ignore[union-attr]  # as timm and Ultralytics replace one


# The order matters: a batch sampler is made from the sampler.
_COMPUTED = (
    "num_workers", "prefetch_factor", "worker_init_fn", "multiprocessing_context", "sampler", "batch_sampler",
)  # fmt: skip
_OF_BATCHES = ("batch_size", "drop_last", "sampler")
# These can be set between epochs, and before the loader is made.
_OPTIONS = {*_COMPUTED[:4], "collate_fn", "generator", "in_order", "timeout"}
_OPTIONS |= {"pin_memory", "pin_memory_device"}
_OF_PREPARED = ("iteration", "total_batch_size", "total_dataset_length")
_SETTABLE = {*_OPTIONS, *_OF_BATCHES, "batch_sampler", "dataset", "persistent_workers"}
_WITH: dict[str, dict[str, Any]] = {  # what setting an option sets as well
    "batch_sampler": {"batch_size": 1, "shuffle": False, "sampler": None, "drop_last": False},
    "multiprocessing_context": {"start_method": None},
    "sampler": {"shuffle": False},
}
_FIXED = dataset_loader.FIXED - _OPTIONS


def _prefers_names(init: Callable[P, None]) -> Callable[P, None]:
    """Let arguments by name replace those by position if a batch sampler is named."""
    # Lightning makes a hook's loader again from its arguments by position, with batch_sampler= and
    # batch_size=1 by name.

    @wraps(init)
    def accept(*args: P.args, **named: P.kwargs) -> None:
        if "batch_sampler" in named and "dataset" not in named:
            given = inspect.signature(init).bind_partial(*args).arguments
            return init(**(given | named))  # type: ignore[call-arg]  # all of them by name
        return init(*args, **named)

    return accept


class DataLoader(LikeTorchs, dataset_loader.DataLoader[S], TorchLoader):  # type: ignore[misc]
    """A `gpuloader.DataLoader` with the parameters, defaults and results of ``torch.utils.data.DataLoader``.

    Batches are PyTorch tensors in host memory, so a program that moves them to a device runs unchanged.
    With ``places="cuda"`` they arrive on the GPU; then delete ``.to(device)``.

    PyTorch's parameters mean what they mean there, except for those below. Parameters for workers are
    ignored without workers.

    Parameters
    ----------
    num_workers : int or 'auto'
        'auto' finds the number of worker processes; see `gpuloader.DataLoader`.
    pin_memory : bool
        Whether batches in host memory are pinned, by the loop's thread, on a machine with a GPU. Those that
        land on a GPU have been copied from pinned memory in any case.
    pin_memory_device : str
        Accepted, without effect.
    generator : torch.Generator or None
        Each epoch draws from it what PyTorch's loader draws, so a shuffle has PyTorch's order. None draws
        from PyTorch's global generator. With ``seed=...`` nothing is drawn: the order is that of
        `gpuloader.DataLoader`, a function of seed and epoch.
    places : place, str, torch.device, or list of them, or None
        Where batches land; None uses the first GPU, or host memory if there is none.
    output : str or None
        The library whose arrays make up a batch.
    shard : str, tuple of int or None
        'auto' divides a map-style dataset among the ranks of a distributed run, as Lightning does for
        PyTorch's loader, and `batch_size` is that of each rank. Without a seed and a generator, all ranks
        then shuffle with the seed 0. Under Accelerate, a loader divides once it is prepared. A
        sampler or batch sampler that already divides, such as a ``DistributedSampler``, is left alone, and so
        are iterable datasets. A sampler that may differ between ranks is left alone with a warning. A pair
        (rank, world size) always divides, None never.
    uneven : str
        How to divide an incomplete last step: 'repeat' fills it up with the first samples, as PyTorch's
        ``DistributedSampler`` does; 'drop', 'pad' and 'error' are those of `gpuloader.DataLoader`.
    use_buffer_reader : bool or 'thread'
        False: without workers, the calling thread reads, as in PyTorch; datasets may rely on that.
    snapshot_every_n_steps : int
        Accepted for compatibility with torchdata, without effect: a state is always that of the latest batch.
    **options
        Other options of `gpuloader.DataLoader`, such as ``seed``, ``cache`` or ``transforms``.

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

    _prepared: PreparedLoader | None = None  # what Accelerate finds here, once it has the loader
    __initialized = False  # by PyTorch's name, which subclasses set, too, to replace a sampler
    num_workers, prefetch_factor, worker_init_fn, multiprocessing_context, sampler, batch_sampler = (
        _Computed(vars(dataset_loader.DataLoader)[name].fget) for name in _COMPUTED
    )
    _IterableDataset_len_called = None  # PyTorch's own iterators, which a subclass may use, ask for it
    _framework = Framework(
        _make_sampler,
        draw_seed=lambda: int(empty((), dtype=int64, device="cpu").random_()),
        divides_if_possible=True,
        follows_torch=True,
        keeps_values=True,
        convert=default_convert,
        fallback=Fallback(default_collate, _needs_default_collate),
        # Found for the first batch: asking initializes CUDA, after which a program should not fork.
        pin=lambda batch: _find_pin()(batch),
        iteration=TorchIteration,
    )

    @_prefers_names
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
        use_buffer_reader: bool | str = False,
        snapshot_every_n_steps: int = 1,  # noqa: ARG002 - torchdata's; here every step can be resumed from
        **options: Any,
    ) -> None:
        # PyTorch only asks whether they are true, and programs pass 0 and 1. Other numbers are misplaced.
        named = ("shuffle", shuffle), ("persistent_workers", persistent_workers), ("in_order", in_order)
        flags: dict[str, Any] = {name: bool(flag) if flag in (0, 1) else flag for name, flag in named}
        if generator is not None and not is_torch_generator(generator):
            raise TypeError(f"generator must be a torch.Generator, got {generator!r}")
        if num_workers and is_instance(dataset, "torch.utils.data", "IterDataPipe"):
            # Only PyTorch's loader gives its workers their shards and one seed for all shuffles.
            raise TypeError("workers cannot divide a data pipe: pass num_workers=0, or an IterableDataset")
        # Errors in PyTorch are errors here. `gpuloader.DataLoader` lets both pass.
        if persistent_workers and not num_workers:
            raise ValueError("persistent_workers needs num_workers of 1 or more")
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None yields single samples: there is no last batch to drop")
        if collate_fn is None:
            functions = _collate_functions()[0]  # a program may have replaced one, even before our import
            own, found = default_collate, functions.default_collate
            if batch_size is None:
                own, found = default_convert, functions.default_convert
            collate_fn = None if found is own and found.__module__ == functions.__name__ else found
        super().__init__(
            dataset, batch_size=batch_size, sampler=sampler, batch_sampler=batch_sampler,
            num_workers=num_workers, collate_fn=collate_fn, pin_memory=pin_memory, drop_last=drop_last,
            timeout=timeout, worker_init_fn=worker_init_fn, generator=generator,
            multiprocessing_context=multiprocessing_context, prefetch_factor=prefetch_factor,
            pin_memory_device=pin_memory_device, places=places, output=output, shard=shard, uneven=uneven,
            use_buffer_reader=use_buffer_reader, **flags, **options,
        )  # fmt: skip
        self.__initialized = True

    def _open(self, options: Options, framework: Framework | None = None) -> None:
        super()._open(options, framework)
        shown, batching = self.__dict__, self._epochs.plan.batching
        # Lightning makes another loader from these attributes, by the names of the parameters.
        for name in Options.__dataclass_fields__.keys() - {"shuffle"}:  # Lightning passes shuffle=False
            shown.setdefault(name, getattr(options, name))  # a subclass may use the name for something else
        for name in _COMPUTED:
            shown[name] = vars(DataLoader)[name].fget(self)
        if options.num_workers == AUTO:
            shown["num_workers"] = AUTO  # the attribute is the number, which changes while loops run
        # As PyTorch's loader has them, whether it asks them for anything or not.
        shown["_dataset_kind"] = _DatasetKind.Iterable if batching.iterable else _DatasetKind.Map
        if batching.iterable:
            shown["sampler"] = sampler = _InfiniteConstantSampler()
            if options.batch_size is not None:
                grouped = TorchBatchSampler(sampler, options.batch_size, options.drop_last)
                self._batches = shown["batch_sampler"] = grouped
        elif batching.batch_sampler is not None:
            shown["sampler"] = SequentialSampler(self.dataset)
        self._see()

    def _see(self) -> None:
        """Remember the samplers as they are, to notice what a program changes."""
        shown = self.__dict__
        self._seen = shown["sampler"], shown["batch_sampler"], _find_grouping(shown["batch_sampler"])

    def _follow(self) -> None:
        """Adopt what a program has changed in the samplers since the latest epoch, such as a batch size."""
        sampler, batches, before = self._seen
        if self.batch_sampler is not batches:
            self._change("batch_sampler", self.batch_sampler)
            return
        if self.sampler is not sampler:
            self._change("sampler", self.sampler)
        now = _find_grouping(batches)
        if now == before or now is None or before is None:
            return
        changes: dict[str, Any] = {}
        batching = self._epochs.plan.batching
        if batching.batch_sampler is None:  # the batch sampler is the loader's own
            changes = {"batch_size": now[0], "drop_last": now[1]}
            if now[2] != before[2] and not batching.iterable:
                changes |= {"sampler": batches.sampler, "shuffle": False}
        self._reopen(changes)

    def __len__(self) -> int:
        """Return the number of steps in an epoch; raise `TypeError` if dataset or sampler has no length."""
        self._follow()
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next epoch, which begins when its first step is requested."""
        return self._get_iterator()

    def _get_iterator(self) -> Iterator[Any]:
        """Return what iterating returns; subclasses that override `__iter__` call it by PyTorch's name."""
        self._follow()
        if self._prepared is not None:
            return iter(self._prepared)
        batching = self._epochs.plan.batching.settle()
        # There is none on a single rank, unless `shard` is a pair.
        if (division := batching.division) is not None and self._options.shard == AUTO:
            _warn_of_division(division.rank, division.world_size)
        begin = partial(self._begin, self._epochs.draw_ahead(batching))
        return self._framework.iteration(begin, self._epochs.count_steps)

    @property
    def _iterator(self) -> Any:
        """PyTorch's loader keeps the iterator of persistent workers here, and frameworks ask for it."""
        return vars(self).get("_iterator")

    @_iterator.setter
    def _iterator(self, value: Any) -> None:
        # Detection frameworks set None after they have changed the dataset, to start workers with a new copy.
        # Subclasses, even those that only wrap a loader, keep an iterator of their own under this name.
        self.__dict__["_iterator"] = value
        if value is None and "_epochs" in vars(self):
            self.close()

    if not TYPE_CHECKING:  # for which a loader would have every attribute

        def __getattr__(self, name: str) -> Any:
            # Not properties, which what lists a loader's attributes would ask for: Accelerate prepares the
            # loader when it asks whether it is prepared. And a program's own attributes come first.
            if name == "_is_accelerate_prepared":
                return self._prepare_for_accelerate()
            if self._prepared is not None:
                if name in _OF_PREPARED:
                    return getattr(self._prepared, name)
                if name == "synchronized_generator":
                    self._hand_over()
                if name in self._prepared._shown:
                    return self._prepared._shown[name]
            return object.__getattribute__(self, name)  # raises

    def _prepare_for_accelerate(self) -> bool:
        """Return whether Accelerate takes the loader as it is, which then knows where an epoch ends."""
        if self._prepared is None:
            from accelerate import data_loader, state  # certainly installed: only Accelerate asks

            process, options, own = state.PartialState(), self._options, self._name_own_options()
            placed = process.device.type in ("cpu", "cuda") and not options.static
            divided = process.num_processes == 1 or self._epochs.plan.batching.is_divided
            # What we cannot share out or place, Accelerate can, with a PyTorch loader made from this one.
            if not (placed and divided) or options.shard is None:
                if own:
                    warn(_IGNORES.format(", ".join(own)))
                return False
            if options.seed is None and options.shard == AUTO:
                own += self._name_own_source()
                # Accelerate's options, of which no loader is told, determine the order on several processes,
                # under the Trainer of Transformers on one, and when a program skips batches to resume.
                if not own:
                    warn(_READ_BY_PYTORCH)
                    if isinstance(getattr(self.sampler, "set_epoch", None), dataset_loader.EpochOf):
                        del self.sampler.set_epoch  # PyTorch's has none; Accelerate then tells the dataset
                    return False
                warn(_OWN_ORDER.format(", ".join(own)))
            if process.device.type != "cpu":
                self._reopen({"places": process.device})
            self._take_rank(process.process_index, process.num_processes)
            prepared, shared = PreparedLoader(self), self._epochs.plan.batching.torch_generator
            prepared._iterate = super().__iter__  # iterating over this loader asks for what is made here
            prepared._shown = {
                "device": process.device,
                "synchronized_generator": shared,
                "rng_types": shared and ["generator"],
                "use_stateful_dataloader": True,  # makes `save_state` ask for the state
            }
            self._prepared, self._kind = prepared, data_loader.DataLoaderShard
        return True

    def _take_rank(self, rank: int, ranks: int) -> None:
        """Divide for this rank, which 'auto' does not do under Accelerate."""
        if ranks > 1 and self._epochs.plan.batching.undivided is not None:
            seed = None if self._options.generator is not None else self._options.seed or 0
            self._reopen({"shard": (rank, ranks), "seed": seed})

    def _hand_over(self) -> None:
        """Let another loader read the next epoch by this one's batch sampler."""
        # Only `accelerate.skip_first_batches` asks for the generator: it makes such a loader, of PyTorch's.
        if own := [one for one in self._name_own_options() if one != "cache"]:  # which changes no sample
            raise TypeError(_IGNORES.format(", ".join(own)))
        if isinstance(batches := self.batch_sampler, dataset_loader.UpcomingBatches):
            batches.lead_to(self._epochs, 1)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Accelerate's kind of loader once it is prepared, as `accelerate.skip_first_batches` needs it."""
        return type(self) if self._prepared is None else self._kind

    def __reduce__(self) -> tuple[Any, ...]:
        return object.__new__, (type(self),), self.__getstate__()  # pickle would compare `__class__`

    def _name_own_options(self) -> list[str]:
        return [one for one, usual in _OWN_OPTIONS.items() if (getattr(self._options, one) or None) != usual]

    def _name_own_source(self) -> list[str]:
        """Return the class of the dataset or sampler with which a PyTorch loader would not do the same."""
        source, batching, dataset = self._epochs.plan.source, self._epochs.plan.batching, self.dataset
        of_files = source.iterable and type(dataset).__module__.startswith("gpuloader.")
        is_table = name_table(dataset) and source.dataset is not dataset
        if of_files or source.holds_images or source.own_order or is_table:
            return [type(dataset).__name__]
        # Accelerate gives all processes the same order through the generator of PyTorch's samplers only.
        draws = batching.torch_sampler is None and batching.is_seeded
        sampler = self.sampler if batching.given is None else batching.given.given
        return [type(sampler).__name__] if draws else []

    def state_dict(self) -> dict[str, Any]:
        """Return the user's position in the latest epoch; see `gpuloader.DataLoader.state_dict`."""
        return super().state_dict() if self._prepared is None else self._prepared.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Make the next loop resume at a state; see `gpuloader.DataLoader.load_state_dict`."""
        super().load_state_dict(state)
        given = self._epochs.plan.batching.given
        for name, sampler in () if given is None else given.inside:
            if hasattr(sampler, "load_state_dict"):
                warn(_REDRAWS.format(name=name, kind=type(sampler).__name__))
        if self._prepared is not None:
            self._prepared._state = None

    @property
    def collate_fn(self) -> Callable[[Any], Any]:  # type: ignore[override]
        """The function that was passed, or PyTorch's function for what the loader does by itself."""
        # Trainers copy loaders by their attributes, and call this function themselves. In `vars` it is None,
        # so that a copy that Lightning makes from `vars` also collates by itself.
        is_single = self.batch_size is None and self.batch_sampler is None
        own: Callable[[Any], Any] = default_convert if is_single else default_collate
        return self.__dict__.get("collate_fn") or own

    def __setattr__(self, name: str, value: object) -> None:
        # PyTorch's loader refuses this, too. If it were ignored, `loader.batch_size = 64` would train on.
        if self.__initialized and name in _FIXED:
            raise dataset_loader.refuse_change(name)
        # What it means in Accelerate's own loaders, unless a subclass has an attribute of this name.
        is_epoch = name == "iteration" and self._prepared is not None
        if is_epoch and inspect.getattr_static(self, name, self) is self:
            self.set_epoch(value)
        elif name not in _SETTABLE:
            object.__setattr__(self, name, value)
        elif "_epochs" in vars(self):
            self._change(name, value)
        else:  # a subclass sets it before the loader is initialized
            self.__dict__[name] = value

    def _change(self, name: str, value: Any) -> None:
        """Set an option for the epochs that begin from now on."""
        # A batch sampler keeps its own.
        if name not in _OF_BATCHES or (name == "sampler" and self.batch_sampler is None):
            self._reopen({name: value} | _WITH.get(name, {}))
        if name in _OF_BATCHES:
            self.__dict__[name] = value
            self._see()

    def _reopen(self, changes: Mapping[str, Any]) -> None:
        """Decide again with other options, and continue from the epochs so far; the samplers stay."""
        before, batches = self._epochs, self._batches
        shown = {name: self.__dict__[name] for name in _OF_BATCHES}
        sampler: Any = before.plan.batching.sampler
        if isinstance(getattr(sampler, "set_epoch", None), dataset_loader.EpochOf):
            del sampler.set_epoch  # it leads to the previous epochs
        framework = self._framework._replace(make_sampler=lambda *_, **__: sampler)
        if changes.keys() <= {"places", "shard", "seed"}:
            framework = framework._replace(find=lambda *_, **__: before.plan.source)
        self._open(dataclasses.replace(self._options, **changes), framework)
        self._epochs.take_over(before)
        replaced = "batch_sampler" in changes
        if isinstance(batches, dataset_loader.UpcomingBatches):
            epochs, counts = (before, float("inf")) if replaced else (self._epochs, batches._counts)
            batches.lead_to(epochs, counts)
        if batches is not None and not replaced:
            self._batches = self.__dict__["batch_sampler"] = batches
        self.__dict__.update(shown)
        self._see()


def _name_options() -> inspect.Signature:
    """Return a signature that names all options of a loader, for Lightning to look up."""
    own = inspect.signature(DataLoader.__init__)
    known = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = inspect.signature(dataset_loader.DataLoader.__init__).parameters.values()
    others = [one for one in more if one.name not in own.parameters]
    return own.replace(parameters=[*known, *(one.replace(kind=one.KEYWORD_ONLY) for one in others)])


# Options that PyTorch's loader does not have and that change what a program gets, with their defaults here.
_OWN_OPTIONS = dict.fromkeys(("feed_list", "ragged", "pad", "targets", "transforms", "decode", "cache"))
_OWN_OPTIONS |= {"on_bad": "raise", "output": "torch", "uneven": "repeat"}
_READ_BY_PYTORCH = (
    "Accelerate reads with a PyTorch loader made from this one, so that batches and losses are those of "
    "PyTorch's loader. To read with this loader, in an order of its own, pass a seed to DataLoader; to leave "
    "everything to Accelerate without this warning, pass shard=None"
)
_IGNORES = (
    "Accelerate reads with a PyTorch loader made from this one, which ignores its options {}: leave them "
    "out, loop over the loader without preparing it, or use gpuloader.accelerate.skip_first_batches to skip"
)
_OWN_ORDER = (
    "this loader reads, in an order that may not be Accelerate's, because a PyTorch loader, with which "
    "Accelerate would read, could not do the same with {}. Pass a seed to keep this order without the warning"
)
_EVEN = (
    "even_batches=False has no effect on a loader of gpuloader: all ranks have equally many batches, and the "
    "last ones repeat the first samples; uneven='drop' drops the rest instead"
)
_REDRAWS = (
    "the loader does not use the state_dict of {name}, of type {kind}: to resume, it asks for the epoch's "
    "indices again and drops those that were delivered. So the same indices have to come again, for example "
    "from a generator that __iter__ seeds with the epoch of set_epoch"
)


@cache
def _warn_of_division(rank: int, world_size: int) -> None:
    """Warn once that a loader reads a part, although nobody has asked for that."""
    # A program may have divided its data without any sampler, as with files[rank::world_size].
    warn(
        f"this process is rank {rank} of {world_size}, and the loader divides the samples among the ranks, "
        "while PyTorch's loader reads all of them on every rank. If the dataset is a part for this rank, or "
        "every rank is meant to read everything, pass shard=None. To divide without this warning, pass a "
        "DistributedSampler or shard=(rank, world_size)",
    )


DataLoader.__init__.__signature__ = _name_options()  # type: ignore[attr-defined]


class _UpcomingBatches(dataset_loader.UpcomingBatches, TorchBatchSampler):  # type: ignore[misc]
    """The batch sampler of a loader, which is also PyTorch's ``BatchSampler``."""

    _plain = TorchBatchSampler

    def __new__(cls, sampler: Any, batch_size: int, drop_last: bool, epochs: Any = None) -> Any:
        # Lightning makes another batch sampler of the same class around its own sampler.
        return TorchBatchSampler(sampler, batch_size, drop_last) if epochs is None else super().__new__(cls)

    @property
    def even_batches(self) -> bool:
        """Whether all ranks have equally many batches; Accelerate's `join_uneven_inputs` sets this."""
        return True

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        if not value:
            warn(_EVEN)


DataLoader._upcoming = _UpcomingBatches


def random_split(
    dataset: MapStyle[S],
    lengths: Sequence[float],
    generator: int | GeneratorLike = None,
    *,
    seed: int | None = None,
    stratify: ArrayLike | None = None,
) -> list[Subset[S]]:
    """Split a dataset at random, into the same parts as ``torch.utils.data.random_split``.

    Parameters, errors and results are those of `gpuloader.random_split`. The exception: without a generator
    or seed, PyTorch's global generator is used, so that ``torch.manual_seed`` determines the parts.

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
    parts = datasets.random_split(dataset, lengths, generator, seed=seed, stratify=stratify)
    # Lists like PyTorch's: programs join them with `+`, or write them as JSON.
    return [Subset(dataset, part.indices.tolist()) for part in parts]
