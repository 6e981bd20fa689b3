"""The epochs of a `DataLoader`: where one starts, how it is opened, and what the user gets of its steps."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from gpuloader.api.epochs import Epochs
from gpuloader.api.loading import LoadingPlan
from gpuloader.api.state import Position, end_epoch, find_spent
from gpuloader.batches.gathering import Gatherer, RowStager
from gpuloader.batches.items import BatchSpec, ItemState, copy_state
from gpuloader.batches.schema import Collation
from gpuloader.batches.staged import StagedBatch
from gpuloader.epoch.delivery import Masks, add_mask
from gpuloader.epoch.epoch import DeliveredStep, Epoch, Iteration, apply_setting, open_epoch, take_buffers
from gpuloader.errors import SampleError, warn
from gpuloader.fetch.contract import EpochRequest, WorkerOptions
from gpuloader.fetch.fetching import Fetching
from gpuloader.fields.convert import IF_IT_VARIES, describe_field
from gpuloader.fields.spec import Spec, plain_indices
from gpuloader.foreign import is_instance
from gpuloader.order.batching import Batching, EpochSetter
from gpuloader.order.dividing import ALONE
from gpuloader.order.order import InOrder, Shuffled, Stretch
from gpuloader.order.plan import DealtPlan, GroupedPlan, OrderedPlan, Plan, ShardedPlan
from gpuloader.order.torch_order import TorchOrder
from gpuloader.order.worker_info import ask_ranks
from gpuloader.sources.dataset import count_items
from gpuloader.system import finalizers, platforms, threads
from gpuloader.watch.meter import Configuration, Meter

if TYPE_CHECKING:
    from gpuloader.epoch.cache import ArraySource, Resident

T = TypeVar("T")

Present = Callable[[DeliveredStep], Any]
"""Returns what the user sees of a delivered step."""


class DatasetEpochs(Epochs):
    """The epochs of a `DataLoader`. Its plan never changes; rank, workers and cached arrays may."""

    def __init__(self, plan: LoadingPlan, meter: Meter) -> None:
        super().__init__(meter, plan.collation.programmer)
        self.plan = plan
        self.workers = plan.workers  # who fetches from the next epoch on
        self.seed = plan.batching.seed  # None until an epoch needs one
        self._has_drawn = False
        self._follows_torch = plan.follows_torch
        self._ahead: weakref.ref[Position] | None = None  # drawn by an iterator that has not begun yet
        self.deliver_to(plan.delivery)
        self._masks = Masks(plan.delivery.locker)
        # A user who passes shard has asked for more than PyTorch does.
        warns = plan.follows_torch and plan.batching.sharding is None
        self._epoch_setter = None if plan.batching.given is None else EpochSetter(plan.batching, warns=warns)
        self._resident: Resident | None = None
        self._promised: Resident | None = None
        self._read_with(plan.collation, plan.workers, None)

    def _read_with(self, collation: Collation, workers: WorkerOptions, gatherer: Gatherer | None) -> None:
        plan = self.plan
        batching, shards = plan.batching, plan.delivery.shards
        spec = BatchSpec(
            plan.source,
            collation,
            plan.size,
            # How a shorter batch divides into parts is unknown until its size is.
            drop_last=batching.drop_last or (batching.iterable and shards > 1),
            division=None if batching.sharding is None else ALONE,  # until an epoch finds the rank
        )
        prefetch = self.delivery.prefetch
        self._fetching = Fetching(spec, workers, gatherer, self._meter, prefetch, plan.delivery.near)

    def open(self, position: Position, guard: finalizers.Finalizer) -> Iteration:
        """Open an epoch at the user's position, for the rank that this process has now."""
        self._ahead = None
        plan, fetching, tuner = self.plan, self._fetching, self._fetching.tuner
        # The rank is found now: a launcher may start the ranks after the loader was made, or change them.
        batching = plan.batching.settle()
        watch = None if batching.sharding else warn_if_undivided(batching)
        if plan.batching.sharding is not None:
            self._number_batches(position, batching)
        if position.copies == 0 and position is self._resumed:
            # Before anything is drawn, because the state may be that of a global generator.
            plan.source.dataset.load_state_dict(position.workers[0].state)
        is_new = position.seed is None
        if is_new:
            position.seed = self.draw_seed(batching)
        if batching.torch_sampler is None:
            pass  # the seed alone determines the order
        elif position.torch_order is None:
            # A state of an earlier release has a seed instead, which means this package's own order.
            if is_new or not (position.taken or position.batches or position.beyond):
                position.torch_order = self._draw_order(position.epoch, batching)
        elif batching.torch_generator is not None and position is self._resumed:
            position.torch_order.resume(batching.torch_sampler)
        fetching.settle(batching.division)  # ends persistent workers that read for another rank
        if tuner is not None:  # continue with the setting that earlier epochs have found
            self.delivery = self.delivery._replace(prefetch=tuner.setting.prefetch)
        if self._epoch_setter is not None:
            self._epoch_setter.begin(position.epoch)  # before anything asks the user's samplers for indices

        buffers = take_buffers(
            self._idle,
            self.delivery,
            fetching.ahead,
            self._meter,
            shared=fetching.in_processes,
            stretch=fetching.stretch,
            programmer=self._programmer,
        )
        # The pass is made before workers start, so that an error of the user's sampler leaves none behind.
        order, count_real, one = self._read_from(position, batching)
        if self._resident is not None:
            try:
                self._resident.begin(order, buffers.lanes)
            except BaseException:
                self._idle.append(buffers)  # nothing is in flight on them
                raise
        present: Present = partial(present_step, plan, position, count_real is not None)
        if watch is not None:
            present = watch(present)
        missed: Callable[[SampleError], None] | None = position.missed if one.continues else None
        if position.torch_order is not None and batching.torch_generator is not None:
            present = partial(self._draw_as_delivered, present, position, batching)
            if missed is not None:  # PyTorch's sampler has drawn for a batch that raises all the same
                missed = partial(self._draw_as_delivered, missed, position, batching)
        # What the loop reads itself, or in a thread that starts later, need not defer signals for 10 µs.
        starts = fetching.count or (fetching.policy and fetching.policy.bound and fetching.policy.threaded)
        with threads.deferred_interrupt() if starts else nullcontext():  # until the guard knows the workers
            fetch = fetching.open(one, buffers.ring)
            # With too few samples for a step, an epoch is empty although its source was not read before.
            drops = batching.drop_last or self.delivery.drop_last
            spent = partial(find_spent, plan.source, batching, drops=drops)
            epoch = Epoch(
                buffers,
                fetch,
                present,
                self._idle,
                drop_last=self.delivery.drop_last,
                meter=self._meter,
                ended=partial(end_epoch, position, spent, was_divided=position.is_divided),
                tuner=tuner,
                # Only workers that fetch by index are tuned.
                apply=partial(apply_setting, buffers, fetch, fetching),
                masking=None if count_real is None else lambda staged: self._masks.get(*count_real(staged)),
                kernels=self._kernels,
                reveals=plan.follows_torch,
                missed=missed,
            )
            return open_epoch(epoch, guard)

    def _number_batches(self, position: Position, batching: Batching) -> None:
        """Number the batches of an epoch that is about to begin, for the ranks that there are now."""
        taken = position.taken or 0
        batching.check_even(taken)
        position.step = batching.step
        steps, position.base = divmod(taken, position.step)
        position.batches = steps * position.shards

    def _read_from(
        self, position: Position, batching: Batching
    ) -> tuple[InOrder | Shuffled | None, Callable[[StagedBatch], tuple[int, int]] | None, EpochRequest]:
        """Return the order of cached batches, a function that counts a batch's real samples, and the pass.

        Samples are counted only if batches may end in repeated samples and carry a mask.
        """
        assert position.seed is not None
        shards = self.delivery.shards
        # Ranks that share an epoch share its seed, so their workers need seeds of their own.
        follows_torch = self._follows_torch and (batching.division or ALONE).world_size == 1
        request = partial(
            EpochRequest, position.seed, position.epoch, owner=self._token, follows_torch=follows_torch
        )
        if batching.iterable:
            alone, readers = self._fetching.reads_alone, self._fetching.readers or 1
            position.divide(self.plan.source.dataset, readers, alone=alone)
            position.size, reached = self.plan.size, dict(position.workers)
            division, counts = batching.division, False
            if division is not None:
                workers = range(max(self.workers.count, 1))
                reached = {number: ItemState(number, 0, base=position.base) for number in workers}
                # A step that would need a mask and has to be cut into shards is dropped.
                counts = division.pads(None, drop_last=batching.drop_last or shards > 1)
            without_indices: Iterator[tuple[int, Any]] = zip(count(position.batches), repeat(()))
            one = request(without_indices, reached, position.turn)
            return None, attrgetter("state") if counts else None, one

        if position.copies is not None:
            # Only for a state: from one epoch to the next, the workers' copies continue by themselves.
            own = position.workers if position is self._resumed else {}
            request = partial(request, own=own, turn=position.batches % max(position.copies, 1))
        drawn = None
        if position.torch_order is not None:
            # Where nothing reads ahead, each part is drawn when PyTorch's loader draws it.
            is_ahead = self.workers.count or self._fetching.ahead or not self.delivery.has_host
            live = not is_ahead and len(self.delivery.devices) == 1
            drawn = position.torch_order.read(batching.torch_sampler, live=live)
        plan: Plan = batching.plan(position.seed, position.epoch, position.base, drawn)
        if isinstance(plan, GroupedPlan):
            plan = plan._replace(follows_torch=self._follows_torch)
        order = None if self._resident is None else self._resident.find_order(plan)
        if order is not None and isinstance(plan, OrderedPlan):
            plan = plan._replace(order=InOrder(len(order)))  # positions in the order, which the devices hold
        is_part = batching.division is not None
        pads = self.delivery.pads or (is_part and isinstance(plan, OrderedPlan | DealtPlan) and plan.pads)
        if shards > 1:
            plan = ShardedPlan(plan, shards, self.delivery.uneven)
        count_real: Callable[[StagedBatch], tuple[int, int]] | None = None
        if pads and isinstance(plan, ShardedPlan | OrderedPlan | DealtPlan):
            take_own = plan.take_own
            count_real = lambda staged: take_own(staged.number)  # noqa: E731
        # A copy: the position's own set shrinks while the fetch, which is ahead of the user, reads this one.
        start, beyond = position.batches, set(position.beyond)
        batches: Iterator[Any] = plan.batches(start)
        if order is not None:
            # The positions of a batch increase by one, and the last may repeat.
            batches = (Stretch(order, at[0], at[-1], len(at)) for at in batches)
        numbered: Iterator[tuple[int, Any]] = enumerate(batches, start)
        if beyond:
            numbered = (entry for entry in numbered if entry[0] not in beyond)
        # Not with several places: a step must have a batch for each of them.
        continues = self._follows_torch and len(self.delivery.devices) == 1
        return order, count_real, request(numbered, None, continues=continues)

    # Positions: where an epoch starts, and where one resumes that another loader may have begun.

    def draw_seed(self, batching: Batching | None = None) -> int:
        """Return the loader's seed; draw it first if none was given.

        `batching` is that of this rank, if the caller has it. Ranks that divide an order cannot each draw
        one, so theirs is 0.
        """
        # Drawn late, at the first epoch, as PyTorch does: `manual_seed` after making a loader still counts.
        is_given = self.seed is not None and not self._has_drawn
        division = None if is_given else (batching or self.plan.batching.settle()).division
        ranks = (division or ALONE).world_size
        # PyTorch draws one for each start of its workers.
        again = self._has_drawn and self._follows_torch and not self.workers.persistent
        if self.seed is None or again or ranks > 1:  # there may have been one rank when it was drawn
            alike = ranks > 1 and self.plan.batching.torch_generator is None
            # PyTorch draws on every rank, even if a program never uses the result.
            drawn = int(self.plan.draw_seed()) if self._follows_torch or not alike else 0
            self.seed, self._has_drawn = 0 if alike else drawn, True
        return self.seed

    def draw_ahead(self, batching: Batching | None = None) -> Position | None:
        """Return what PyTorch's loader draws when an iterator is made; None if it draws nothing then.

        `batching` is that of this rank, if the caller has it.
        """
        if not self._follows_torch or self._resumed is not None or self._prepared is not None:
            return None
        batching = batching or self.plan.batching.settle()
        ahead = Position(self.draw_seed(batching), self._next)
        # PyTorch's workers get indices immediately, so its sampler draws now. What ranks agree on waits until
        # the epoch's number is known.
        if self.workers.count and not self._agrees(batching):
            ahead.torch_order = self._draw_order(self._next, batching)
        if ahead.torch_order is not None:
            ahead.torch_order.draw_until(self._count_asked(ahead, batching))
        self._ahead = weakref.ref(ahead)
        return ahead

    @staticmethod
    def _agrees(batching: Batching) -> bool:
        """Return whether several ranks divide an order that none of them can draw."""
        return (batching.division or ALONE).world_size > 1 and batching.torch_generator is None

    def _count_asked(self, position: Position, batching: Batching) -> int:
        """Return how many indices PyTorch's loader has requested from its sampler by this position."""
        batches = (position.batches + len(position.failed)) // position.shards
        batches += self.workers.count * self.workers.prefetch_factor
        # A batch sampler that was passed as sampler yields lists of indices.
        size = (batching.size or 1) * (getattr(batching.sampler, "batch_size", 1) if batching.single else 1)
        return position.base + batches * size * (batching.division or ALONE).world_size

    def _draw_as_delivered(
        self, deliver: Callable[[T], Any], position: Position, batching: Batching, step: T
    ) -> Any:
        """Deliver a step or its error; the user's generator then draws what PyTorch's has drawn by now."""
        # Not when the fetch asks for indices: how far it is ahead depends on free slots.
        delivered = deliver(step)
        assert position.torch_order is not None
        position.torch_order.draw_until(self._count_asked(position, batching))
        return delivered

    def _draw_order(self, epoch: int, batching: Batching) -> TorchOrder | None:
        if batching.torch_sampler is None or (batching.given is None and not self._follows_torch):
            return None
        if self._agrees(batching):
            return TorchOrder(epoch)  # the seed that PyTorch's `DistributedSampler` shuffles an epoch with
        return TorchOrder.draw(batching.torch_sampler)

    def start(self, epoch: int, taken: int = 0) -> Position:
        """Return the position in an epoch at which all ranks together have taken `taken` samples.

        The batches of a loader that is divided among ranks are numbered when its epoch is opened.
        """
        plan, batching = self.plan, self.plan.batching
        position = Position(
            None if self._follows_torch else self.draw_seed(),
            epoch,
            readers=self._fetching.readers,
            size=plan.size,
            shards=plan.delivery.shards,
            order_size=batching.order_size,
            ranks=None if batching.given is None else batching.given.ranks,
        )
        if self._follows_torch and self._fetching.copies is not None and self.ranks[1] == 1:
            position.copies = self._fetching.copies
            if not position.copies:
                position.workers = {0: ItemState(0, 0, copy_state(plan.source.dataset.state_dict()))}
            elif self.workers.persistent and self._latest is not None:
                position.workers = dict(self._latest.workers)
        if self._follows_torch and self.workers.persistent and self._has_drawn:
            position.seed = self.seed  # workers that persist keep theirs
        if batching.sharding is not None:
            position.step, position.base = 1, taken
        elif taken:
            steps, base = divmod(taken, batching.step)
            position.batches = steps * plan.delivery.shards
            if base:
                position.step, position.base = batching.step, base
        if position.step is not None:
            position.total, position.dealt = self._count_all(), batching.is_dealt
        return position

    def restart(self) -> Position:
        """Return the start of the next epoch, in the order that a loaded state has for it."""
        position, resumed = self.start(self.next_epoch), self._resumed
        if resumed is not None:
            position.seed, position.torch_order = resumed.seed, resumed.torch_order
        return position

    def find_own(self, positions: Sequence[Position]) -> Position:
        """Return this rank's position, given those of all ranks of a run, which may have been more or fewer.

        Raises `ValueError` if the positions of other ranks tell this one nothing.
        """
        if self.plan.batching.sharding is not None:
            raise ValueError("with shard=, the states of all ranks are alike: pass one of them, not a list")
        dataset, (rank, ranks) = self.plan.source.dataset, ask_ranks()
        if len(positions) == ranks and len({one.epoch for one in positions}) == 1:
            known = is_instance(dataset, "gpuloader.sources.files.shards", "ShardDataset")
            states = [(at, own.state) for at, one in enumerate(positions) for own in one.workers.values()]
            for at, state in states if known else ():
                if not state:
                    continue
                number, count = state.get("reader") or (state["number"], state["count"])
                if (number % ranks, count) != (at, ranks * (positions[at].readers or 1)):
                    raise ValueError(
                        f"state {at} of {ranks} is not that of rank {at} of {ranks}: pass the states of "
                        "all ranks, in the order of the ranks"
                    )
            return positions[rank]
        # A rank that has ended its epoch before the others is at the start of the next one.
        position = max(positions, key=lambda one: (-one.epoch, one.batches))
        alone = self._fetching.reads_alone
        epochs = {one.epoch for one in positions if one.batches} | {position.epoch}
        alike = len({one.readers for one in positions}) == len(epochs) == 1
        if not (alike and all(one.can_divide(dataset, alone=alone) for one in positions)):
            raise ValueError(
                f"got the states of {len(positions)} ranks, in the epochs {sorted(epochs)}, and there are "
                f"{ranks} now: only datasets in files that ranks divide themselves, in the same epoch and "
                "with as many worker processes each, can continue"
            )
        position.divide(dataset, self._fetching.readers or 1, alone=alone, ranks=positions)
        return position

    def resume_at(self, position: Position) -> None:
        """Resume at a loader's state: at its batch, or at its sample if batches differ.

        Raises `ValueError` if the state does not tell how many samples were delivered, if it comes from
        another dataset, or from a different number of workers when the order depends on it.
        """
        plan, batching = self.plan, self.plan.batching
        if position.order_size != batching.order_size:
            raise ValueError(
                f"the state is a position in {_name_order(position.order_size)}, but this loader reads "
                f"{_name_order(batching.order_size)}; resume with the same batch sampler and batch size, or "
                "the same shuffle and shuffle_buffer"
            )
        ranks = None if batching.given is None else batching.given.ranks
        if position.ranks not in (None, ranks) and (position.taken or position.batches or position.beyond):
            raise ValueError(
                f"the state is from within an epoch that a sampler divided among {position.ranks} ranks, and "
                f"this loader reads for one of {ranks or 1}: samples would be repeated or lost"
            )
        if position.copies not in (None, self._fetching.copies):
            raise ValueError(
                f"the state has the dataset's own state in {position.copies} workers, and this loader has "
                f"{self._fetching.count}: use the same num_workers to resume"
            )
        is_sharded, shards = batching.sharding is not None, plan.delivery.shards
        alone = self._fetching.reads_alone
        divides = not is_sharded and position.can_divide(plan.source.dataset, alone=alone)
        same = (plan.size if divides else position.size, position.shards) == (plan.size, shards)
        if not is_sharded and position.step is None and same:
            self._fetching.check_readers(self._fetching.readers if divides else position.readers)
            if position.is_divided and not alone:
                raise ValueError(
                    "the state says where each worker is in the dataset's files, but threads share the "
                    "dataset; use worker processes, or one worker, to resume"
                )
            with suppress(TypeError):  # the number of batches is unknown
                _check_end("batches", position.batches, batching.count() * shards)
            self._take_seed(position)
            self.resume(position)
            return

        if batching.is_dealt:
            taken = position.batches if position.step is None and position.readers is None and same else None
        elif batching.iterable:
            # Without a step it may come from a map-style dataset.
            taken = position.taken if is_sharded and position.step is not None else None
        else:
            taken = position.taken if is_sharded or batching.counts_samples else None
        if taken is None or (position.beyond and (is_sharded or not same)):
            raise ValueError(
                f"the state counts {position.describe()}; this loader has batches of {plan.size} samples per "
                f"place, {shards} per step{', divided by shard=' * is_sharded}, and cannot tell where in its "
                "epoch that is"
            )
        total = self._count_all()
        if total is not None:
            if position.step is None and not batching.is_dealt:  # its last batch may have been shorter
                taken = min(taken, total) if taken < total + (position.size or 1) else taken
            _check_end("batches" if batching.is_dealt else "samples", taken, total)
        batching.check_even(taken)
        self._take_seed(position)
        resumed = self.start(position.epoch, taken)
        resumed.seed, resumed.torch_order = position.seed, position.torch_order
        resumed.copies, resumed.workers = position.copies, position.workers
        # Batches are numbered from this position, because the other loader numbered its own differently.
        resumed.beyond = {number + resumed.batches for number in position.beyond}
        self.resume(resumed)

    def _take_seed(self, position: Position) -> None:
        """Continue with a state's seed, unless the epochs of both loaders draw their own."""
        if self._follows_torch:
            self._fetching.close()  # workers at another position must not continue this epoch
            if position.persists:
                self.seed, self._has_drawn = position.seed, True
                return
        # A state with a seed but without PyTorch's draws comes from this package's order, which continues.
        made = self.plan.batching.given is None and self.plan.batching.torch_sampler is not None
        if not self._follows_torch or (made and position.torch_order is None and position.seed is not None):
            self.seed, self._has_drawn, self._follows_torch = position.seed, False, False

    def state(self) -> dict[str, Any]:
        """Return the position to resume at, as plain data."""
        ahead = None if self._ahead is None else self._ahead()
        if ahead is not None and self._resumed is None:
            # The iterator's order is drawn now, because until its first step the program may draw as well.
            ahead.torch_order = ahead.torch_order or self._draw_order(self._next, self.plan.batching.settle())
            position = self.start(self._next)
            position.seed, position.torch_order = ahead.seed, ahead.torch_order
            state = position.to_json()
        else:
            state = super().state()
        state.setdefault("seed")  # None: the next epoch draws it
        if self._follows_torch and self.workers.persistent and state["seed"] is not None:
            state["persists"] = True
        return state

    def _count_all(self) -> int | None:
        """Return the samples per epoch over all ranks, or the batches if those are dealt; None if unknown."""
        batching = self.plan.batching
        try:
            return batching.count() if batching.is_dealt else batching.count_samples()
        except TypeError:
            return None

    # Lengths, and the batches of an epoch without reading any.

    def count_steps(self) -> int:
        """Return the number of steps in an epoch, for the ranks that there are now; raises `TypeError`."""
        # Computed each time: ranks may come later than the loader, and a dataset may grow.
        batching, delivery = self.plan.batching.settle(), self.delivery
        if delivery.shards > 1 and not batching.iterable:
            return batching.count(delivery.shards if delivery.uneven == "drop" else 1)
        batches, places = self.count_batches(), len(delivery.devices)
        if delivery.shards > 1:
            return batches
        return batches // places if delivery.drop_last else -(-batches // places)

    def count_batches(self) -> int:
        """Return the number of batches that `list_batches` yields for a whole epoch."""
        batching = self.plan.batching.settle()
        if not batching.iterable:
            return batching.count()
        # As in PyTorch, the dataset's length is taken as given, not checked against what workers yield.
        samples = count_items(self.plan.source.dataset)
        drop_last = batching.drop_last or self.delivery.shards > 1
        return (batching.division or ALONE).count(samples, batching.size or 1, drop_last=drop_last)

    def list_batches(self) -> Iterator[list[Any]]:
        """Yield the indices of each batch of the next epoch, from its start, over all places of this rank."""
        position, batching = self.restart(), self.plan.batching.settle()
        if self.plan.batching.sharding is not None:
            self._number_batches(position, batching)
        order = position.torch_order or self._draw_order(position.epoch, batching)
        seed = position.seed
        if seed is None:
            seed = self.draw_seed() if order is None and batching.is_seeded else 0
        drawn = None if order is None else order.read(batching.torch_sampler, live=True)
        plan = batching.plan(seed, position.epoch, position.base, drawn)
        for number, indices in enumerate(plan.batches(position.batches // position.shards), 1):
            if order is not None:
                order.draw_until(number * (batching.size or 1))
            yield plain_indices(indices)
        if order is not None:
            order.draw_until(math.inf)

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank, and the number of ranks that share an epoch; (0, 1) if it is not divided."""
        division = self.plan.batching.settle().division or ALONE
        return division.rank, division.world_size

    # A cache: later epochs take their batches from arrays.

    def promise_cache(self, specs: Sequence[Spec]) -> None:
        """Reserve device memory for arrays that are yet to be read; raises the errors of `cache_as`."""
        # Reading may take hours, so memory that is too small has to show now.
        self._promised = None
        if not self.delivery.has_host:
            from gpuloader.epoch.cache import Resident  # imported late: most loaders have no cache

            there = Resident(self.delivery.devices, self._transforms)
            there.reserve(specs)
            self._promised = there

    def cache_as(self, source: ArraySource, *, resident: bool) -> None:
        """Take all later batches from arrays: on the host, or on the devices if `resident` is set."""
        collation, workers = self.plan.collation, self.workers
        if not resident or self.delivery.has_host:
            gatherer = Gatherer(source.arrays, source.rows, collation, source.tree)
        else:
            from gpuloader.epoch.cache import Resident
            from gpuloader.transforms.program import Programmer

            source = source.compact()
            there = self._promised or Resident(self.delivery.devices, self._transforms)
            self._promised = None
            Gatherer(source.arrays, None, collation, source.tree).check_all()
            there.bring(source)
            self._resident = there
            native = self._programmer is not None and self._programmer.native
            programmer = Programmer(self._transforms, source.gathers(), native=native)
            collation = replace(collation, programmer=programmer)
            # Workers and slots carry only the numbers of rows, 16 bytes a batch.
            outline = source.outline()  # holds one row of each array, so that the host's can be freed
            gatherer = RowStager(outline.arrays, None, collation, outline.tree)
            workers = replace(workers, count=0)  # too little is left to stage to be worth a worker
        self._read_with(collation, workers, gatherer)

    # What the loader's attributes tell and change.

    def take_over(self, before: DatasetEpochs) -> None:
        """Continue from the epochs of the same loader before its options changed."""
        self._latest, self._next, self._ahead = before._latest, before._next, before._ahead
        now, then = self.plan.batching.given, before.plan.batching.given
        if now is not None and then is not None and now.given is then.given:
            self._epoch_setter = before._epoch_setter  # it knows whether others set its epoch
        self.seed, self._has_drawn = before.seed, before._has_drawn
        self._follows_torch = before._follows_torch
        if before._resumed is not None:
            self.resume_at(before._resumed)
        before._fetching.retire()

    def set_worker_init(self, function: Callable[[int], object] | None) -> None:
        """Make workers that start from now on call this function first."""
        self.workers = replace(self.workers, init=function)
        self._fetching.set_worker_init(function)

    @property
    def configuration(self) -> Configuration:
        """The options that explain a loop's times."""
        fetching, workers, tuner = self._fetching, self.workers, self._fetching.tuner
        return Configuration(
            fetching.reads,
            fetching.count if tuner is None else tuner.setting.workers,
            workers.kind,
            platforms.usable_cores(),
            len(self.delivery.devices),
            persistent=workers.persistent,
            tuned="" if tuner is None else tuner.describe(),
            most=0 if tuner is None else tuner.most_workers,
            since=None if tuner is None else tuner.settled_at,
            policy=fetching.policy,
            started=fetching.started,
        )

    def close(self) -> None:
        """End persistent worker processes."""
        self._fetching.close()
        if self._has_drawn and self._follows_torch:  # PyTorch draws another seed for other workers
            self.seed, self._has_drawn = None, False


def _name_order(size: int | None) -> str:
    if size is None:
        return "an order for any batch size"
    return f"an order for batches of {size} samples or windows of {size} chunks"


def _check_end(what: str, reached: int, total: int) -> None:
    if reached > total:
        raise ValueError(
            f"the state is {reached} {what} into an epoch and this dataset has {total}: it comes from "
            "another dataset or sampler, or more batches are to be skipped than there are"
        )


# What the user gets of a step: batches nested like samples, with their masks.


def present_step(plan: LoadingPlan, position: Position, masked: bool, step: DeliveredStep) -> Any:
    """Return a step, counted as received: the batch of the only place, or a list with one entry per place.

    If it is `masked`, the last array of each place is the batch's mask.
    """
    # Each part takes its schema from its own first sample. Kept samples are collated, which compares them.
    if plan.delivery.shards > 1 and not plan.collation.keeps:
        _check_alike([staged for staged, _ in step])
    batches: list[Any] = []
    for staged, arrays in step:
        mask = arrays.pop() if masked else None
        batch = staged.tree.build_batch(staged.levels, arrays, staged.objects, transposed=plan.transposed)
        if plan.names is not None:
            batch = dict(zip(plan.names, batch, strict=True))
        batch = add_mask(batch, mask) if masked else batch
        for change in plan.changes:
            batch = change(batch)
        batches.append(batch)
        position.received(staged)
    return batches[0] if plan.names is None and len(plan.delivery.devices) == 1 else batches


def _check_alike(parts: Sequence[StagedBatch]) -> None:
    """Raise `SampleError` unless the parts of a batch have the same fields, shapes and dtypes."""
    first, *others = parts
    for part in others:
        if part.layout is first.layout:  # equal batches share one, so this is nearly always all
            continue
        field, expected, got = None, first.tree.describe(), part.tree.describe()
        if part.tree == first.tree:
            names = first.tree.array_names
            for name, one, other in zip(names, first.layout.fields, part.layout.fields, strict=True):
                if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
                    field = name
                    expected, got = (describe_field(each.shape[1:], each.dtype) for each in (one, other))
                    break
            else:
                continue
        raise SampleError(
            f"expected {expected} as in the first part of the batch that split='shards' has cut, got {got}; "
            f"{IF_IT_VARIES}",
            batch=part.number,
            field=field,
        )


# The warning that every rank of a distributed run reads the whole dataset without being told to.

_has_warned = False

_SAMPLES = "pass shard='auto' to read this rank's part of each step"
_ITEMS = "pass shard='auto', or let the dataset divide items by get_worker_info().rank and .world_size"


def warn_if_undivided(batching: Batching) -> Callable[[Present], Present] | None:
    """Warn once per process if each of several ranks reads everything and nobody has asked for that.

    An iterable dataset may divide its items itself. Whether it asks for its rank is known once it has yielded
    a batch. So for an iterable dataset this returns a function to wrap the one that presents the steps.
    """
    # Once, not per loader: programs make one for training and one for evaluation, and the advice is the same.
    if _has_warned or batching.reads_all:
        return None
    ranks = 0, 1
    with suppress(ValueError):  # this loader does not need to know the rank
        ranks = batching.find()
    if ranks[1] == 1 or batching.is_divided:
        return None
    if batching.iterable:
        return partial(_present_and_warn, ranks, batching.obstacle or _ITEMS)
    _warn_of_ranks(ranks, batching.obstacle or _SAMPLES)
    return None


def _present_and_warn(ranks: tuple[int, int], advice: str, present: Present) -> Present:
    is_first = True

    def present_first(step: DeliveredStep) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            if not any(getattr(staged.state, "asked", False) for staged, _ in step):
                _warn_of_ranks(ranks, advice)
        return present(step)

    return present_first


def _warn_of_ranks(ranks: tuple[int, int], advice: str) -> None:
    global _has_warned
    if _has_warned:
        return
    _has_warned = True
    warn(
        f"this process is rank {ranks[0]} of {ranks[1]}, and the loader reads all samples on every rank: "
        f"{advice}; if every rank is meant to read everything, pass shard=(0, 1)",
    )
