"""How the samples of an epoch are grouped into batches: the loader's options, checked and combined.

as_sampler       what is known about the user's sampler, found out once
Batching.choose  the options of one process
Batching.divide  the same, for ranks that divide an epoch
Batching.settle  the same, for the rank that this process has when an epoch begins
Batching.plan    the indices of each batch of that epoch
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.errors import BadType, BadValue, warn
from gpuloader.foreign import find_classes, foreign_name
from gpuloader.order import samplers
from gpuloader.order.dividing import ALONE, Division, Sharding
from gpuloader.order.order import IndexArray, InOrder, Mapped, Mixed, Order, as_indices
from gpuloader.order.plan import BulkPlan, DealtPlan, GroupedPlan, OrderedPlan, Plan
from gpuloader.order.samplers import BatchSampler, BucketSampler, Sampler, SequenceSampler, check_length
from gpuloader.order.torch_order import find_torch_sampler
from gpuloader.order.worker_info import find_rank, find_torch_rank
from gpuloader.system.iterators import refuse_read

OwnOrder = Callable[[bool], Any]
"""Makes the sampler, shuffled or not, of a dataset that has its own order, such as a `MixDataset`."""

FindOrder = Callable[[int, int], Order | None]
"""Returns the order of an epoch, given seed and epoch; None if only iterating the sampler yields it."""

# Attributes of samplers that yield one rank's indices: PyTorch's, Paddle's, Accelerate's and others'.
_DIVIDING = (
    ("num_replicas", "rank"),
    ("nranks", "local_rank"),
    ("num_processes", "process_index"),
    ("world_size", "rank"),
    ("_world_size", "_rank"),
)
_OF_INDICES = ("SequentialSampler", "SequenceSampler", "RandomSampler")
_OF_DRAWN_INDICES = ("WeightedRandomSampler", "DistributedSampler")


class GivenSampler(NamedTuple):
    """What is known about the sampler or batch sampler that a user passed."""

    name: str  # 'sampler' or 'batch_sampler'
    given: Any  # what was passed
    inside: tuple[tuple[str, Any], ...]  # the sampler and those that it reads from, with names for errors

    @property
    def in_batches(self) -> bool:
        """Whether it yields batches of indices."""
        return self.name == "batch_sampler"

    @property
    def order(self) -> FindOrder:
        """What computes the order of an epoch, if its class can."""
        # A `BatchSampler` passed as `sampler` yields lists of indices, which no order can express. With
        # batch_size=None, the dataset is then asked for one list at a time.
        fits = isinstance(self.given, Sampler) and isinstance(self.given, BatchSampler) == self.in_batches
        return self.given.order if fits else _no_order

    @property
    def divides(self) -> bool:
        """Whether it, or a sampler that it reads from, yields the indices of one rank."""
        # Samplers of other packages have no common base class, so the names of their attributes have to tell.
        return any(
            isinstance(one, samplers.DistributedBatchSampler)
            or any(hasattr(one, count) and hasattr(one, rank) for count, rank in _DIVIDING)
            for _, one in self.inside
        )

    @property
    def ranks(self) -> int | None:
        """How many ranks it divides the dataset among, if it says so; None if it does not divide it."""
        samplers = [one for _, one in self.inside]
        told = (getattr(one, count, 0) for one in samplers for count, rank in _DIVIDING if hasattr(one, rank))
        return next((int(count) for count in told if isinstance(count, int | np.integer) and count > 0), None)


def as_sampler(sampler: Any, batch_sampler: Any) -> GivenSampler | None:
    """Return what is known about the sampler that the user passed; None without one.

    >>> as_sampler(None, samplers.DistributedBatchSampler("abc", 2)).divides
    True
    """
    if sampler is None and batch_sampler is None:
        return None
    if sampler is not None and batch_sampler is not None:
        raise BadValue(_EXCLUDED)
    given: Any = sampler if batch_sampler is None else batch_sampler
    name = "sampler" if batch_sampler is None else "batch_sampler"
    if not isinstance(given, Iterable):
        raise BadType(f"{name} must be iterable, got {type(given).__name__}")
    refuse_read(given, f"the {name} is", "pass a list, or an object whose __iter__ makes a new iterator")
    inside: list[tuple[str, Any]] = []
    what: str = f"the {name}"
    one: Any = given
    # A batch sampler, its sampler, and another one that wraps it, such as Accelerate's.
    while one is not None and len(inside) < 3:
        inside.append((what, one))
        attribute = "batch_sampler" if getattr(one, "sampler", None) is None else "sampler"
        what, one = f"the {attribute} of {what}", getattr(one, attribute, None)
    return GivenSampler(name, given, tuple(inside))


_EXCLUDED = (
    "batch_sampler determines the batches: batch_size, shuffle, sampler and drop_last cannot be given as well"
)


def yields_numbers(sampler: Any) -> bool:
    """Return whether a sampler or batch sampler certainly yields numbers, so that no dataset is read by key.

    >>> yields_numbers([2, 0]), yields_numbers(["cat", "dog"])
    (True, False)
    """
    if isinstance(sampler, Sampler):
        return True
    name = foreign_name(sampler)
    if name in (*_OF_INDICES, *_OF_DRAWN_INDICES):
        return True
    if name in ("BatchSampler", "SubsetRandomSampler"):
        return yields_numbers(sampler.sampler if name == "BatchSampler" else sampler.indices)
    if not (hasattr(sampler, "__getitem__") and hasattr(sampler, "__len__") and len(sampler)):
        return False
    # Only for a sequence: looking at the first index of an iterator would take it away from the epoch.
    first = next(iter(sampler))
    return hasattr(first, "__index__") or (not isinstance(first, str) and yields_numbers(first))


# Which samplers fit a dataset, and the options that they are passed as.


class StoredOrder(SequenceSampler):
    """The indices of a dataset in order, for filling a loader's cache.

    It also fits a `MixDataset`: a cache holds every sample once, and is read in the order of the mix.
    """


def check_fits(
    sampler: GivenSampler, dataset: Any, batch_size: int | None, own_order: OwnOrder | None = None
) -> None:
    """Check that a sampler fits a map-style dataset and the option that it was passed as.

    >>> check_fits(as_sampler(None, BucketSampler([3, 1], 2)), "abc", 1)
    Traceback (most recent call last):
    gpuloader.errors.BadValue: the BucketSampler has 2 lengths, but the dataset has 3 samples: pass t...
    """
    given, kind = sampler.given, type(sampler.given).__name__
    # Shuffled or not makes no difference here: both mix the datasets in the same proportion.
    own: Any = None if own_order is None else own_order(False)
    keeps_weights = not isinstance(own, samplers.MixSampler) or isinstance(given, StoredOrder)
    if not keeps_weights and not any(own.mixes_like(one) for _, one in sampler.inside):
        raise BadType(
            f"the {sampler.name}, of type {kind}, would read the {type(dataset).__name__} without its "
            "weights: leave it out, because the loader reads a mix in the mix's own order, which "
            "shuffle=True shuffles and shard divides; for an order of your own, read "
            "ConcatDataset(mix.datasets)"
        )
    if isinstance(given, BucketSampler):
        count = len(dataset) if isinstance(dataset, Sized) else len(given.lengths)
        if len(given.lengths) != count:
            raise BadValue(
                f"the {kind} has {len(given.lengths)} lengths, but the dataset has {count} samples: pass the "
                "length of each sample, in the dataset's order; for a Subset, lengths[subset.indices]"
            )
        if not sampler.in_batches and batch_size is not None:
            raise BadType(f"a {kind} yields whole batches: pass it as batch_sampler, without a batch_size")
    if sampler.in_batches:
        # Otherwise every index would pass for a batch, and the error would come only with the first epoch.
        single = foreign_name(given) in (*_OF_INDICES, "SubsetRandomSampler", *_OF_DRAWN_INDICES)
        if isinstance(given, Sampler) and not isinstance(given, BatchSampler):
            single = single or given.order(0, 0) is not None
        if single:
            raise BadType(f"a {kind} yields single indices: pass it as sampler, with a batch_size")


# What ranks can agree on: samplers that yield the same indices on every rank.


class ListedSampler(Sampler[int]):
    """A fixed list of indices, the same in every epoch.

    >>> ListedSampler([4, 2]).order(seed=0, epoch=0).slice(0, 2).tolist()
    [4, 2]
    """

    def __init__(self, indices: Sequence[int] | NDArray[np.int64]) -> None:
        super().__init__()
        self._order = Mapped(InOrder(len(indices)), as_indices("sampler", indices))

    def order(self, seed: int, epoch: int) -> Order:  # noqa: ARG002
        """Return the listed indices."""
        return self._order


def find_shared(sampler: GivenSampler) -> Sampler[Any] | None:
    """Return the sampler whose order ranks can divide; None if they have to iterate over the user's sampler.

    Raises `ValueError` if ranks might not agree on the indices, or if the sampler already divides them.

    >>> given = as_sampler(None, BatchSampler(sampler=[2, 0, 1], batch_size=2))
    >>> find_shared(given).order(0, 0).slice(0, 3).tolist()
    [2, 0, 1]
    """
    given, name = sampler.given, type(sampler.given).__name__
    if sampler.divides:
        raise ValueError(f"{name} already divides the dataset among ranks: pass it or shard, not both")
    grouped: Any = given
    if sampler.in_batches:
        kinds: list[type[Any]] = [BatchSampler, BucketSampler, *find_classes("BatchSampler")]
        # A sampler that only groups another's indices; Paddle's planner may make it group several batches.
        groups = any(isinstance(given, kind) and type(given).__iter__ is kind.__iter__ for kind in kinds)
        groups = groups and getattr(given, "_acc_steps", 1) == 1
        grouped = getattr(given, "sampler", None) if groups else None
    source = as_source(grouped)
    if source is not None:
        return source
    # Random samplers of PyTorch and Paddle draw from a generator of the process, which differs between ranks.
    # An iterator yields its indices only once, so a later epoch would have none.
    drawing = find_classes("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
    draws = isinstance(getattr(given, "sampler", given), (samplers.RandomSampler, *drawing))
    # A `set_epoch` shows that a sampler's order depends only on the epoch.
    tells = sampler.in_batches or callable(getattr(given, "set_epoch", None))
    if isinstance(given, Iterator) or draws or not tells:
        raise ValueError(
            f"shard needs an order that is the same on every rank, which {name} does not guarantee: pass "
            "shuffle=True with a seed, a list of indices as sampler, one of gpuloader's samplers, a sampler "
            "with a method set_epoch, or a batch_sampler that yields the same batches on every rank"
        )
    return None


def as_source(sampler: Any) -> Sampler[Any] | None:
    """Return a sampler with an order that every rank computes identically, or None if there is none.

    >>> type(as_source(range(3))).__name__, as_source(iter([1, 2]))
    ('ListedSampler', None)
    """
    ours = sampler if isinstance(sampler, Sampler) and not isinstance(sampler, BatchSampler) else None
    if ours is not None and ours.order(0, 0) is not None:
        return ours
    if foreign_name(sampler) in ("SequentialSampler", "SequenceSampler"):
        return SequenceSampler(getattr(sampler, "data_source"))  # noqa: B009 - another package's attribute
    if isinstance(sampler, str | bytes | Mapping) or not isinstance(sampler, Sized):
        return None
    # Text and dicts have a length, too, but their entries are keys. Indices in any other indexable object are
    # listed once, here, so that every rank slices the same array and not an object that may change.
    entries: Any = sampler
    if isinstance(entries, Sequence | np.ndarray) or hasattr(entries, "__array__"):
        return ListedSampler(entries)
    if not hasattr(entries, "__getitem__"):
        return None
    return ListedSampler([entries[position] for position in range(len(entries))])


_IF_ALIKE = (
    "if it yields the same on every rank, pass shard=(rank, world_size) to divide that; if it divides the "
    "dataset itself, give it the attributes num_replicas and rank"
)
_ITEMS_OBSTACLE = (
    "make the iterable dataset divide its items by the rank and world_size of gpuloader.get_worker_info(), "
    "or pass shard=(rank, world_size) if it yields the same on every rank"
)


_WAITS = "prepare it with Accelerate, make a process group before, or pass shard=(rank, world_size)"


def _no_order(seed: int, epoch: int) -> None:
    """Return None: a sampler has to be iterated, or there is none."""


class Batching(NamedTuple):
    """How a dataset's samples are grouped into batches, in every epoch."""

    # Yields the indices of an epoch, or of each batch; an iterable dataset has neither.
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    # Samples per batch, 1 for single samples; None if a batch sampler of unknown size determines it.
    size: int | None
    given_size: int | None  # the user's `batch_size`
    drop_last: bool
    seed: int | None = None  # of the order; None lets the loader draw one
    given: GivenSampler | None = None  # the user's sampler; None if the loader made it
    order: FindOrder = _no_order
    iterable: bool = False  # whether there are no indices to batch
    # The PyTorch sampler that draws each epoch's order, if one does.
    torch_sampler: Any = None

    # How the epoch is divided among ranks.
    sharding: Sharding | None = None  # None reads everything
    reads_all: bool = False  # whether the user has asked for every rank to read everything
    obstacle: str | None = None  # why the epoch is not divided, although it should be
    undivided: Batching | None = None  # what to use on a single rank instead
    find: Callable[[], tuple[int, int]] = find_rank
    division: Division | None = None  # the rank whose part of each step to read, once `settle` has found it

    @classmethod
    def choose(
        cls,
        dataset: Any,
        *,
        iterable: bool,
        given: GivenSampler | None = None,
        own_order: OwnOrder | None = None,
        batch_size: int | None,
        shuffle: bool,
        drop_last: bool,
        seed: int | None = None,
        make: Callable[[Any, bool], Iterable[int]] = samplers.make_sampler,
    ) -> Batching:
        """Return the batching that the options of a loader describe; `make` makes a missing sampler.

        Options that exclude each other raise `ValueError`; a dataset without a length or a sampler that does
        not fit raises `TypeError`.
        """
        if iterable and (shuffle or given is not None):
            asked = "shuffle" if shuffle or given is None else given.name
            raise BadValue(f"an iterable dataset determines its own order: {asked} cannot be given")
        if given is not None:
            check_fits(given, dataset, batch_size, own_order)
        order: FindOrder = _no_order if given is None else given.order
        if given is not None and given.in_batches:
            if batch_size != 1 or shuffle or drop_last:
                raise BadValue(_EXCLUDED)
            batches = given.given
            # Batch samplers of PyTorch and Paddle have it; a user-defined class may use the name differently.
            found = getattr(batches, "batch_size", None)
            size = int(found) if isinstance(found, int | np.integer) and found >= 1 else None
            if isinstance(getattr(batches, "sampler", None), samplers.Budgeted):
                size = None  # what was found is the size of the largest batch
            drop_last = isinstance(batches, BatchSampler) and batches.drop_last
            random = find_torch_sampler(batches)
            return cls(None, batches, size, None, drop_last, seed, given, order, torch_sampler=random)
        if given is not None and shuffle:
            raise BadValue("sampler determines the order: shuffle cannot be given as well")
        size = 1 if batch_size is None else check_count("batch_size", batch_size)
        sampler: Any = None if given is None else given.given
        torch_sampler = None if given is None else find_torch_sampler(sampler)
        if given is None and not iterable:
            samplers.check_sized("a dataset without a sampler", dataset)
            sampler = make(dataset, shuffle) if own_order is None else own_order(shuffle)
            if isinstance(sampler, Sampler):
                order = sampler.order
            else:  # PyTorch's has no order for a seed, so our own sampler replaces it
                order = samplers.make_sampler(dataset, shuffle).order
                torch_sampler = find_torch_sampler(sampler) if seed is None else None
        return cls(sampler, None, size, batch_size, drop_last, seed, given, order, iterable, torch_sampler)

    # Derived from the options, so that copies cannot disagree with them.

    @property
    def any_order(self) -> Order | None:
        """Any epoch's order: all have the same kind and length. None if only iterating yields it."""
        return self.order(0, 0)

    @property
    def single(self) -> bool:
        """Whether samples are delivered individually, not in batches."""
        return self.batch_sampler is None and self.given_size is None

    @property
    def order_size(self) -> int | None:
        """The batch size, or the chunks of a window, that the order is made for; None if it is for any."""
        # A different one would sort a bucket or a window differently, so states of the two are incompatible.
        if isinstance(self.sampler, samplers.ChunkSampler):
            return self.sampler.window
        return self.batch_sampler.batch_size if isinstance(self.batch_sampler, BucketSampler) else None

    @property
    def torch_generator(self) -> Any:
        """The user's generator that each epoch's order is drawn from, or None."""
        return getattr(self.torch_sampler, "generator", None)

    @property
    def is_divided(self) -> bool:
        """Whether the ranks divide the epoch: by this batching, or by the user's sampler itself."""
        return self.sharding is not None or (self.given is not None and self.given.divides)

    @property
    def is_dealt(self) -> bool:
        """Whether the ranks take whole batches of a batch sampler in turn."""
        return self.sharding is not None and self.sampler is None and not self.iterable

    @property
    def step(self) -> int:
        """Samples, or batches if those are dealt, that all ranks together take per step."""
        ranks = 1 if self.division is None else self.division.world_size
        return ranks if self.is_dealt else ranks * (self.size or 1)

    def divide(
        self, shard: object, uneven: object, *, dataset: object, in_order: bool, insists: bool = True
    ) -> Batching:
        """Return a batching that is divided among ranks, or this one if `shard` is None.

        Raises `ValueError` if the ranks might not agree on an order, or the samples do not divide evenly.
        Unless it `insists`, this leaves some things undivided: everything on a single rank, an iterable
        dataset, a sampler that may yield different indices on each rank, and a sampler that already divides.
        """
        if shard is None:
            return self
        sharding = Sharding.of(shard, uneven)
        if not insists:
            # PyTorch programs that were never meant to be divided also run under Slurm or MPI.
            sharding = sharding._replace(find=find_torch_rank)
            self = self._replace(find=lambda: find_torch_rank(waits=False))  # a warning need not wait
        is_alone = sharding.ranks is not None and sharding.ranks[1] == 1
        try:
            if self.iterable and not insists:
                raise ValueError(_ITEMS_OBSTACLE)
            divided = self._divide(sharding, dataset, in_order)
            # PyTorch accepts any sampler. One that may differ between ranks is left alone, and the loader
            # warns about it when an epoch begins.
            if not insists and divided.any_order is None:
                name = type(self.batch_sampler if self.sampler is None else self.sampler).__name__
                raise ValueError(f"{name} may differ between ranks: {_IF_ALIKE}")
        except (TypeError, ValueError) as error:
            if not insists:
                return self._replace(obstacle=str(error))
            # A single rank has nobody to disagree with, so shard=(0, 1) is never refused. Users pass it to
            # say that every process reads everything.
            if not is_alone or isinstance(error, TypeError):
                raise
            return self._replace(reads_all=True)
        if not insists:
            # On a single rank, a list that the user changes counts in the next epoch. Under Accelerate, each
            # process counts as one: it divides what it finds when it takes a loader apart.
            divided = divided._replace(undivided=self._replace(obstacle=_WAITS))
        if insists and divided.seed is None:
            # Without randomness no seed is needed, except by `sample_rng`; ranks must not draw one each.
            if not divided.is_seeded:
                divided = divided._replace(seed=0)
            elif not is_alone and divided.torch_generator is None:
                raise ValueError(
                    "with shard, all ranks need the same order: pass the same seed to all of them, for "
                    "example seed=0; without one, each rank would draw its own"
                )
        divided.check_even()
        return divided

    def _divide(self, sharding: Sharding, dataset: object, in_order: bool) -> Batching:
        if not in_order:
            raise ValueError(
                "shard needs in_order=True: if ranks received batches in different orders, no position in "
                "the epoch would tell which samples all of them have read"
            )
        if self.single and sharding.uneven == "pad":
            raise ValueError(
                "uneven='pad' adds a mask to each batch, but batch_size=None yields single samples: choose "
                "uneven='repeat', 'drop' or 'error'"
            )
        if self.iterable:
            # Every rank reads all items and keeps its own, so all of them see the same end.
            if sharding.uneven == "error":
                raise ValueError(
                    "the length of an iterable dataset is not known in advance: choose uneven='pad', "
                    "'repeat' or 'drop'"
                )
            if isinstance(dataset, Iterator):
                raise ValueError(
                    "with shard, every rank and every worker reads the dataset from its start, in every "
                    f"epoch, but a {type(dataset).__name__} can be read only once: pass an IterableDataset "
                    "whose __iter__ starts over"
                )
            return self._replace(sharding=sharding)
        # What the loader made has an order; what the user passed may have to be iterated by every rank.
        if self.given is None:
            return self._replace(sharding=sharding)
        source = find_shared(self.given)
        if source is None:
            if sharding.uneven == "error":
                check_length(self.batch_sampler)
            return self._replace(sharding=sharding)
        drop_last = self.drop_last or bool(getattr(self.batch_sampler, "drop_last", False))
        return self._replace(sampler=source, order=source.order, drop_last=drop_last, sharding=sharding)

    @property
    def is_seeded(self) -> bool:
        """Whether the order depends on the seed."""
        order = self.any_order
        inside = getattr(self.batch_sampler, "sampler", None)
        if isinstance(inside, samplers.Budgeted):
            return inside.shuffles
        # If in doubt, it does: a user's order may use the seed, and asking for one costs less than ranks that
        # read different samples.
        if isinstance(order, Mixed):
            return order.shuffle
        return not isinstance(order.base if isinstance(order, Mapped) else order, InOrder | None)

    def settle(self) -> Batching:
        """Return this batching for the rank that this process has now; raises like `find_rank`."""
        if self.sharding is None:
            return self
        # Not when the loader is made: Lightning runs a script up to `fit` before it starts the other ranks,
        # and a process group may begin after the loader is made.
        division = self.sharding.divide()
        if self.undivided is not None and division.world_size == 1:
            return self.undivided
        return self._replace(division=division)

    def check_even(self, position: int = 0) -> None:
        """Raise `ValueError` if samples do not divide among the ranks and `uneven` is 'error'."""
        if self.sharding is None or self.sharding.uneven != "error":
            return
        try:
            division = self.settle().division
        except ValueError:
            return  # the next epoch finds the rank, or raises this again
        if division is None:
            return
        if self.is_dealt:
            left = len(check_length(self.batch_sampler)) - position
            division.check_even(left, 1, drop_last=False, what="batches")
        else:
            left = self.count_samples() - position
            division.check_even(left, self.size or 1, drop_last=self.drop_last)

    def plan(self, seed: int, epoch: int, base: int = 0, drawn: Iterator[IndexArray] | None = None) -> Plan:
        """Return the plan of an epoch of a map-style dataset, with `base` samples before its batch 0.

        What `torch_sampler` has `drawn` for the epoch may come in parts.
        """
        order, size, division = self.order(seed, epoch), self.size or 1, self.division
        if drawn is not None:
            first = next(drawn)
            rest = chain.from_iterable(part.tolist() for part in chain((first,), drawn))
            outer: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
            grouped = (size, self.drop_last, base) if self.sampler is not None else ()
            if outer is not self.torch_sampler:  # a batch sampler, which groups what was drawn
                outer = copy.copy(outer)
                outer.sampler = rest
                return GroupedPlan(outer, *grouped)
            if len(first) < len(outer):  # may be more than fits into memory
                return GroupedPlan(rest, *grouped)
            order = Mapped(InOrder(len(first)), first)
        if order is not None:
            return OrderedPlan(order, size, self.drop_last, division or ALONE, base)
        if self.sampler is None:
            assert self.batch_sampler is not None
            batches = samplers.find_batches(self.batch_sampler, seed, epoch)
            return GroupedPlan(batches) if division is None else DealtPlan(batches, division, base)
        if division is not None:
            # The sampler's epoch has been set, and it yields the same on all ranks. As a ListedSampler it can
            # be sliced, so a resume with a different number of ranks divides it again.
            listed = ListedSampler(list(samplers.walk(self.sampler))).order(seed, epoch)
            return OrderedPlan(listed, size, self.drop_last, division, base)
        if self.single and isinstance(self.sampler, BatchSampler):
            # Bulk loading as in PyTorch: each "index" is a list, and the dataset returns a whole batch.
            order = self.sampler.order(seed, epoch)
            if order is not None:
                return BulkPlan(OrderedPlan(order, self.sampler.batch_size, self.sampler.drop_last), base)
        return GroupedPlan(self.sampler, size, self.drop_last, base)

    @property
    def counts_samples(self) -> bool:
        """Whether any batch size yields the same samples in the same order, so a resume may change it."""
        if isinstance(self.batch_sampler, samplers.DistributedBatchSampler):
            return False  # it deals whole batches, so a rank's samples depend on the batch size
        return self.sampler is not None or self.any_order is not None

    def count(self, least: int = 1) -> int:
        """Return the number of batches per epoch, not counting a last one of fewer than `least` samples.

        Raises `TypeError` if the number is unknown.
        """
        if self.batch_sampler is not None and (self.division is None or self.is_dealt):
            batches = len(check_length(self.batch_sampler))
            return batches if self.division is None else self.division.count(batches, 1)
        if self.sampler is None or self.size is None:
            raise TypeError("an iterable dataset has no length")
        division = self.division or ALONE
        return division.count(self.count_samples(), self.size, drop_last=self.drop_last, least=least)

    def count_last(self) -> int | None:
        """Return the number of samples in an epoch's last batch, or None if it is not known in advance."""
        # Ranks share the last step evenly, so the end of a divided epoch depends on their number.
        is_known = not self.drop_last and (self.sharding is None or self.sharding.ranks is not None)
        order = self.any_order if is_known else None
        if order is None or self.size is None:
            return None
        division = self.settle().division or ALONE
        step = self.size * division.world_size
        return division.last(len(order) % step or step, self.size, drop_last=False) or self.size

    def count_samples(self) -> int:
        """Return the number of samples per epoch, over all ranks; raise `TypeError` like `count`."""
        # The sampler that a loader has made is as long as its order, which takes longer to make.
        if (self.sampler is None or self.given is not None) and (order := self.any_order) is not None:
            return len(order)
        if self.sampler is None:
            raise TypeError("the number of samples per epoch is unknown")
        return len(check_length(self.sampler))


_SETS_EPOCH = (
    "the loader calls {name}.set_epoch with the number of each epoch, because nobody else does. PyTorch's "
    "loader would read every epoch in the order of the first one: call sampler.set_epoch(epoch) before each "
    "epoch; that counts in both loaders"
)


class _Told(int):
    """The number of an epoch that a loader has set, to tell it from an equal one that a program sets.

    A copy of a sampler keeps it; a pickle has a plain number, which a program may save.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)

    def __deepcopy__(self, memo: object) -> _Told:
        return self


def _was_set(now: object, seen: object) -> bool:
    """Return whether somebody other than a loader has set a sampler's epoch since a loader saw it."""
    # A program may begin with set_epoch(0) after a first look at a batch, for which the loader set 0, too. A
    # copy of a loader finds what the loader has set, as another loader of the same sampler does.
    return not isinstance(now, _Told) and (now != seen or isinstance(seen, _Told))


class EpochSetter:
    """Calls ``set_epoch`` of a user's own samplers when an epoch begins, as trainers do for PyTorch's loader.

    It `warns` about the first change. A sampler whose ``epoch`` has been set since the last call, or is not 0
    at first, is left alone from then on: either the user sets it, or it counts by itself.

    Examples
    --------
    >>> class Turned:
    ...     epoch = 0
    ...     def set_epoch(self, epoch):
    ...         self.epoch = epoch
    ...     def __iter__(self):
    ...         return iter([self.epoch, self.epoch + 1])
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(10), sampler=Turned(), batch_size=2, places="cpu")
    >>> [batch.tolist() for _ in range(3) for batch in loader]
    [[0, 1], [1, 2], [2, 3]]
    """

    def __init__(self, batching: Batching, *, warns: bool = False) -> None:
        self._warns = warns
        self._known: list[tuple[Any, object]] = []
        # Samplers with an order for each epoch get the epoch along with the request for the order.
        if batching.given is not None and batching.any_order is None:
            given = batching.given.given
            for one in (given, getattr(given, "sampler", None)):
                if callable(getattr(one, "set_epoch", None)):
                    # Programs that make a loader for each epoch set the sampler's epoch before.
                    epoch = getattr(one, "epoch", None)
                    self._known.append((one, 0 if isinstance(epoch, int) else epoch))

    def find_moved(self) -> int:
        """Return the epoch that somebody else has set on a sampler since the last call; -1 for none."""
        epochs = [(getattr(sampler, "epoch", None), seen) for sampler, seen in self._known]
        return max((now for now, seen in epochs if isinstance(now, int) and _was_set(now, seen)), default=-1)

    def begin(self, epoch: int) -> None:
        """Set the epoch of the samplers whose epoch nobody else sets."""
        known, self._known = self._known, []
        for sampler, seen in known:
            # A sampler that has changed is dropped for good: setting it would undo what the user has set.
            if not _was_set(getattr(sampler, "epoch", None), seen):
                if self._warns and isinstance(seen, int) and seen != epoch:
                    # Python shows each warning text once per line and process.
                    warn(_SETS_EPOCH.format(name=type(sampler).__name__))
                sampler.set_epoch(_Told(epoch))
                self._known.append((sampler, getattr(sampler, "epoch", None)))
