"""The contents of `gpuloader.accelerate`: a loader that Hugging Face's Accelerate knows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from gpuloader.api.loader import DataLoader
from gpuloader.batches.staged import END
from gpuloader.order.order import check_whole


class PreparedLoader:
    """A loader that an Accelerator knows; made by `prepare`. Its `loader` is the one that was prepared.

    It looks one batch ahead, as Accelerate's own loaders do, to recognize the last one. That batch does not
    count in its state, which is the position of the batch that you have.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> prepared = PreparedLoader(DataLoader(range(6), places="cpu", batch_size=4, shard=(0, 1)))
    >>> prepared.state_dict() == prepared.loader.state_dict()
    True
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._iterate: Callable[[], Iterator[Any]] = partial(iter, loader)
        self._state: dict[str, Any] | None = None
        self._skipped = 0
        self._shown: dict[str, Any] = {}  # other attributes by which Accelerate knows a PyTorch loader

    def __len__(self) -> int:
        """Return the number of steps in an epoch."""
        return len(self.loader)

    # By the names that Accelerate's own loaders have for them: the number of the next epoch, of the dataset's
    # samples, and of those in a step.

    iteration = property(lambda self: self.loader._epochs.next_epoch)
    total_dataset_length = property(lambda self: len(self.loader.dataset))

    @property
    def total_batch_size(self) -> int:
        """The number of samples in a step of all processes; `AttributeError` without batches of one size."""
        plan, ranks = self.loader._epochs.plan, self.loader._epochs.ranks[1]
        if plan.batching.size is None or plan.batching.single:
            raise AttributeError  # `__getattr__` says why
        return plan.batching.size * ranks * len(plan.delivery.devices) // plan.delivery.shards

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, and tell Accelerate where it ends."""
        known = _make_known(self.loader)  # for each loop: Accelerate keeps a stack of the loaders that run
        if (generator := self.loader._epochs.plan.batching.torch_generator) is not None:
            from accelerate.utils import synchronize_rng_states

            synchronize_rng_states(["generator"], generator)  # ranks may have seeded theirs differently
        steps = itertools.islice(self._iterate(), self._skipped, None)
        self._skipped = 0
        known.begin()
        try:
            before, batch = self.loader._epochs.state(), next(steps, END)
            while batch is not END:
                self._state = self.loader._epochs.state()
                following = next(steps, END)
                if following is END:
                    known.end_of_dataloader = True
                    known.remainder = self._count_last(before, self._state)
                yield batch
                before, batch = self._state, following
            self._state = None
        finally:
            known.end()

    def _count_last(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
        """Return how many samples of the last step count, over all ranks; 0 if all do, or if masks tell."""
        sharding = self.loader._epochs.plan.batching.sharding
        # Accelerate cuts gathered results to this number. Masks tell it batch by batch, and dropped samples
        # were never delivered. A batch sampler that is dealt counts batches, so its samples are unknown.
        is_known = sharding is not None and sharding.uneven == "repeat" and "position" in after
        return int(after["position"]) - int(before["position"]) if is_known else 0

    def skip(self, steps: int) -> None:
        """Make the next loop begin after a number of steps; only an iterable dataset's are read for that."""
        # From its start, because programs count from there after they have loaded a state.
        state = {"seed": None} | self.loader._epochs.restart().to_json()
        # Skipping changes only the position; the items of an iterable dataset have to be read.
        settled, delivery = self.loader._epochs.plan.batching.settle(), self.loader._epochs.plan.delivery
        batches = steps * len(delivery.devices) // delivery.shards  # each place may get one in a step
        if "position" in state:
            reached, total = batches * settled.step, self.loader._epochs._count_all() or 0
            state["position"] = total if total < reached < total + settled.step else reached  # a short end
        elif "workers" not in state:
            state["batches"] += batches * (settled.step if settled.is_dealt else state.get("shards", 1))
        else:
            self._skipped = steps
        self.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a PreparedLoader has no {name}{_LACKS.get(name, f': try .loader.{name}')}")

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop run epoch number `epoch`, counted from 0."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest batch that you have, the same on all processes."""
        return self.loader._epochs.state() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next loop resume at a state; raises like `DataLoader.load_state_dict`."""
        self.loader.load_state_dict(state)
        self._state = None


# Accelerate's own function would silently take a loader apart by its samplers.
_SKIPS = "; to skip, use gpuloader.accelerate.skip_first_batches: Accelerate's would read everything"
_LACKS = {"sampler": _SKIPS, "batch_sampler": _SKIPS, "total_batch_size": ": batches have no common size"}


def _make_known(loader: DataLoader[Any]) -> Any:
    """Return the state that Accelerate keeps about a loader while it is looped over."""
    from accelerate import data_loader, state

    class Known(data_loader.DataLoaderStateMixin):  # type: ignore[misc]
        """The end of an epoch, as Accelerate finds it in its `GradientState`."""

        gradient_state = state.GradientState()
        _drop_last = True  # repeated samples at the end of an epoch are counted here, not by Accelerate

        def __getattr__(self, name: str) -> Any:
            return getattr(loader, name)  # programs ask the `active_dataloader` for its dataset

    return Known()


def prepare(accelerator: Any, loader: DataLoader[Any]) -> PreparedLoader:
    """Register a loader with an Accelerator, which then knows the end of each epoch and saves its state.

    Gradient accumulation ends with the epoch, `gather_for_metrics` leaves out samples that the loader repeats
    with ``uneven='repeat'``, and `save_state` and `load_state` include the loader.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
        The Accelerator of this process.
    loader : DataLoader
        A loader with ``shard='auto'``. The batches land on the loader's own places; Accelerate's options
        `split_batches`, `even_batches` and `dispatch_batches` do not concern it.

    Raises
    ------
    TypeError
        The loader is not gpuloader's.
    ValueError
        There are several processes, and the loader is not divided among them. Or it was made with
        ``static=True``: Accelerate's loaders look one batch ahead, which would replace the batch that you
        have.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> class Accelerator:  # stands for accelerate.Accelerator
    ...     num_processes = 1
    ...     def register_for_checkpointing(self, *registered):
    ...         print("registered", len(registered))
    >>> len(prepare(Accelerator(), DataLoader(range(10), places="cpu", batch_size=4, shard="auto")))
    registered 1
    3
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"expected a gpuloader.DataLoader, got {type(loader).__name__}; pass other loaders to "
            "accelerator.prepare"
        )
    if loader._options.static:
        raise ValueError(
            "a loader with static=True cannot be prepared: it would look one batch ahead, which has the same "
            "memory as the batch that you have; leave static out, or loop over the loader itself"
        )
    batching = loader._epochs.plan.batching
    if accelerator.num_processes > 1 and not batching.is_divided and not batching.reads_all:
        advice = batching.obstacle or "pass shard='auto' to the loader"
        raise ValueError(
            f"each of the {accelerator.num_processes} processes would read everything: {advice}; if that is "
            "meant, pass shard=(0, 1)"
        )
    if batching.undivided is not None:  # a loader of gpuloader.torch
        cast("Any", loader)._take_rank(accelerator.process_index, accelerator.num_processes)
    prepared = PreparedLoader(loader)
    accelerator.register_for_checkpointing(prepared)
    return prepared


def skip_first_batches(loader: PreparedLoader, num_batches: int = 0) -> PreparedLoader:
    """Make the loader's next loop begin after a number of batches, without reading them.

    They count from the start of the epoch, also if a state has been loaded.

    Parameters
    ----------
    loader : PreparedLoader
        The loader; or one of `gpuloader.torch` that ``accelerator.prepare`` has returned.
    num_batches : int
        The number of steps of the loop. The batches of an iterable dataset are read and dropped.

    Returns
    -------
    PreparedLoader
        The same loader, whose later loops run whole epochs.

    Raises
    ------
    ValueError
        The number is negative, or larger than the number of batches in the epoch.
    TypeError
        The loader is not prepared, or not gpuloader's.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> loader = PreparedLoader(DataLoader(range(10), places="cpu", batch_size=4))
    >>> skip_first_batches(loader, 1).state_dict()["batches"]
    1
    """
    if not isinstance(prepared := getattr(loader, "_prepared", loader), PreparedLoader):
        raise TypeError("the loader is not prepared: prepare it, or call accelerate.skip_first_batches")
    prepared.skip(check_whole("num_batches", num_batches, 2**63))
    return loader
