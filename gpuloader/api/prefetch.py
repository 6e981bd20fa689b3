"""`prefetch`: copy the batches of any other loader to a GPU ahead of the loop over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuloader.api.epochs import ReadingEpochs
from gpuloader.api.loading import plan_transforms
from gpuloader.api.options import check_names, check_option, find_unit
from gpuloader.api.state import OF_BATCHES, Position, end_epoch, find_once, read_state
from gpuloader.batches.kept import Intake, NestedStager
from gpuloader.batches.schema import Collation
from gpuloader.batches.staged import StagedBatch
from gpuloader.devices.outputs import FollowingOutput
from gpuloader.devices.places import default_place, parse_places
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.epoch import Iteration
from gpuloader.errors import BadType
from gpuloader.foreign import current_cuda_device
from gpuloader.order import order, randomness, worker_info
from gpuloader.sources.describing import has_state
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.iterators import Steady, close_iterator, refuse_read
from gpuloader.transforms.program import Programmer, Transform
from gpuloader.watch.measured import Measured
from gpuloader.watch.meter import Meter
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy

# One pass over the iterable that `prefetch` wraps, and the states of that iterable on the way.


def has_own_state(batches: Any) -> bool:
    """Return whether an iterable can return its state and resume from it."""
    # Accelerate's loaders have the methods even if the loader inside lacks them.
    return has_state(batches, getattr(batches, "base_dataloader", batches))


class PrefetchedSource:
    """One pass over an iterable of batches: the reader of an epoch, as `stage_all` takes it."""

    def __init__(self, batches: Any, *, stateful: bool) -> None:
        refuse_read(batches, "the iterable of batches is", OF_BATCHES)
        self._batches = batches
        self._stateful = stateful
        # Loaders prepared by Accelerate announce their last batch to the whole program. That must not happen
        # before the user has it: it is taken back when the batch is read, and repeated by `deliver`.
        self.announces = hasattr(batches, "end_of_dataloader") and hasattr(batches, "gradient_state")
        self._is_last = False
        # Created in the thread that asks for the first batch, because loaders fork their workers here.
        self._items = Steady.of(iter(batches))

    def __call__(self) -> Iterator[Any]:
        """Return the iterator of the pass."""
        return self._read_to_last() if self.announces else self._items

    def _read_to_last(self) -> Iterator[Any]:
        """Yield the batches up to the announced last one; asking for more would end the iterable's pass."""
        try:
            for batch in self._items:
                self._is_last = self._batches.end_of_dataloader
                self._batches.end_of_dataloader = False
                yield batch
                if self._is_last:
                    return
        finally:
            if not self._is_last:
                close_iterator(self._items)

    def state_dict(self) -> tuple[Any, bool]:
        """Return the iterable's own state, and whether it has announced its last batch.

        Called right after each batch was read, possibly far ahead of the user.
        """
        return self._batches.state_dict() if self._stateful else None, self._is_last

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the iterable has had its state since the user loaded it."""

    def deliver(self, staged: StagedBatch, arrays: list[Any]) -> Any:
        """Return a batch as the user gets it, and reduce its state to the iterable's own."""
        staged.state, is_last = staged.state
        if is_last:
            self._batches.end_of_dataloader = True
        return staged.tree.build_batch(staged.levels, arrays, staged.objects)

    def finish(self) -> None:
        """Let the iterable end its pass; called once the user has received every batch."""
        if self._is_last:
            next(self._items, None)


_OURS = "gpuloader_prefetch"
"""The key that holds this loader's position in a state of the wrapped loader."""
_MISSING = object()


def prefetch(
    batches: Iterable[Any],
    places: Any = None,
    prefetch: int = 2,
    output: str | None = None,
    *,
    host: Sequence[str] = (),
    transforms: Sequence[Transform] = (),
    stream: object = None,
    drop_last: bool = False,
    seed: int | None = None,
) -> PrefetchedLoader:
    """Return a loader that copies the batches of another loader to a GPU, ahead of the loop over them.

    Every batch comes back as it was: the same keys, the same classes of containers, the same values. Only its
    arrays and tensors are on the GPU. They are copied from pinned memory, on a separate stream, while you
    compute on the previous batch. Their memory is not reused before your work on it has run.

    Parameters
    ----------
    batches : iterable
        An iterable of batches in host memory: a PyTorch loader, a dataset of Hugging Face or tf.data, a list,
        a generator. A batch is any nesting of dicts, tuples, lists and dataclasses. Its arrays and tensors
        are copied. Everything else is passed through: text, numbers, None, sparse tensors, tensors on a GPU.
        Batches may differ in shapes and keys. Each loop is one pass over the iterable.
    places : place, str, torch.device, or list of them, or None
        Where batches land. None uses the GPU of this process, or host memory if there is no GPU. With several
        places, consecutive batches go to them in turn, and each step is a list with one entry per place.
    prefetch : int
        Steps to copy to a GPU ahead of the current one. On a CPU place, batches to read ahead, in a thread
        if that helps. 0 reads and copies each batch when you ask for it.
    output : str or None
        The library whose arrays make up a batch, as for `DataLoader`. None means the library of the
        batches: tensors of PyTorch, JAX and Paddle remain theirs, and NumPy arrays become CuPy's on a GPU.
    host : list of str
        Names of fields that stay unchanged, in host memory. A nested field is named ``outer.inner``. The name
        of a container covers everything in it.
    transforms : list of Transform
        Operations from `gpuloader.transforms` that run where the batch lands.
    stream : object
        The CUDA stream on which you use the batches, as for `DataLoader`.
    drop_last : bool
        Whether to drop a last step that lacks a batch for any of several places.
    seed : int or None
        The seed of transforms that draw random numbers. None draws one from NumPy's global state.

    Returns
    -------
    PrefetchedLoader
        The loader. Its length, its attributes and its state are those of `batches`.

    Raises
    ------
    TypeError
        `batches` is not iterable, or an option has the wrong type.
    ValueError
        An option's value is out of range.
    PlaceError
        A place needs a GPU that is missing.

    Notes
    -----
    Tensors that are pinned already, as with ``pin_memory=True``, are copied in place, and kept until
    their copy has run; do not write to them. All others go through the loader's own pinned memory, so
    ``pin_memory`` is not needed.

    On a CPU place each batch is the very object that the iterable yields, unless `output` or `transforms`
    requires another. If your iterable reuses the same arrays for all batches, pass ``prefetch=0`` there.

    Examples
    --------
    >>> import numpy as np
    >>> import gpuloader
    >>> batches = [{"x": np.arange(2) + n, "meta": (f"batch {n}", n)} for n in range(2)]
    >>> for batch in gpuloader.prefetch(batches, places="cpu"):  # or "cuda:0"
    ...     print(batch)
    {'x': array([0, 1]), 'meta': ('batch 0', 0)}
    {'x': array([1, 2]), 'meta': ('batch 1', 1)}
    """
    return PrefetchedLoader(
        batches, places=places, prefetch=prefetch, output=output, host=host, transforms=transforms,
        stream=stream, drop_last=drop_last, seed=seed,
    )  # fmt: skip


class WrappedEpochs(ReadingEpochs):
    """The epochs around another loader: each is a pass over it, and the first batch starts its workers."""

    reads = "batches"

    def __init__(self, batches: Any, meter: Meter, options: dict[str, Any]) -> None:
        self.ahead = ahead = order.check_whole("prefetch", options["prefetch"], 1 << 31)
        places, stream = options["places"], options["stream"]
        if places is None:
            # The GPU that the program has selected, usually by its local rank under torchrun.
            places = default_place(current_cuda_device() or worker_info.find_local_rank())
        parsed = parse_places(places)
        shared = ("transforms", "output", "drop_last", "seed")
        listed, output, drop_last, self.seed = (check_option(name, options[name]) for name in shared)
        for transform in listed:
            if find_unit(transform) != "batches":
                raise TypeError(
                    f"{type(transform).__name__} works on single images, before they are batched: pass it "
                    "to a gpuloader.DataLoader"
                )
        delivery = Delivery.of(
            parsed, output, stream, prefetch=ahead, drop_last=drop_last, urgent=bool(listed)
        )
        if output is None:
            # Tensors stay those of their library, which the first batch reveals.
            following = tuple(FollowingOutput(device, stream) for device in delivery.devices)
            delivery = delivery._replace(outputs=following)
        programmer = plan_transforms(listed, (), output, delivery) if listed else None
        collation = Collation(
            programmer=programmer,
            on_host=delivery.on_host,
            keeps_gradients=delivery.on_host and output == "torch",
        )
        self._intake = Intake(
            collation,
            check_names("host", options["host"]),
            output,
            # On a host nothing is staged, unless a transform needs memory to write to.
            delivery.on_host and delivery.locker is None and not listed,
            _settle_once(delivery.outputs, programmer),
            # Tensors that are already pinned are copied from where they lie. A host would hand them out.
            None if delivery.has_host else delivery.devices[0].is_page_locked,
        )
        super().__init__(meter, programmer)
        self.deliver_to(delivery)
        self.policy = ReadAheadPolicy(bound=True) if ahead else None
        self._batches = batches
        self._draws = any(one.draws for one in listed)
        self._before: Any = None  # the wrapped loader's state before the latest pass over it was opened

    def start(self, epoch: int) -> Position:
        """Return the position at the start of an epoch; draw a seed first if a transform needs one."""
        if self._draws and self.seed is None:
            self.seed = int(np.random.randint(2**31))
        return Position(self.seed if self._draws else None, epoch)

    def forget_prepared(self) -> None:
        """Drop what `prepare` has opened."""
        self._prepared = None

    def open(self, position: Position, guard: Finalizer) -> Iteration:
        """Open a pass over the wrapped loader, which already has the state that the user loaded."""
        delivery = self.delivery
        stateful = has_own_state(self._batches)
        self._before = self._batches.state_dict() if stateful else None
        source = PrefetchedSource(self._batches, stateful=stateful)
        # One more than is copied ahead: a batch that is read only when requested would be copied late.
        capacity = (self.ahead + (not delivery.on_host or not self.ahead)) * len(delivery.devices)
        draw = randomness.Draw(position.seed, position.epoch)
        # What a loader announces while it is read must stay invisible until `next` returns.
        policy = ReadAheadPolicy(bound=True, read=1.0) if self.ahead and source.announces else self.policy
        return self.open_reading(
            position,
            guard,
            (source, partial(NestedStager, self._intake, draw), 1),
            capacity,
            policy,
            source.deliver,
            partial(self._end, position, source),
        )

    def _end(self, position: Position, source: PrefetchedSource) -> None:
        source.finish()
        what, drops = "the iterable of batches", self.delivery.drop_last
        end_epoch(position, partial(find_once, what, self._batches, OF_BATCHES, drops))

    def state(self) -> dict[str, Any]:
        """Return the wrapped loader's state after the last received batch, with the position here in it."""
        position = super().state()
        if not has_own_state(self._batches):
            return position
        own = position.pop("source", _MISSING)
        if own is _MISSING:
            # What a pass has read ahead, or in a step that failed, the user has not received.
            is_open = self._latest is not None and not self._latest.ended
            own = self._before if is_open or self._prepared is not None else self._batches.state_dict()
        if not isinstance(own, Mapping):  # for example a number
            return {_OURS: {**position, "source": own}}
        return {**own, _OURS: position}

    def resume_at(self, state: Any) -> None:
        """Give the wrapped loader its own state, if it takes one, and resume at this loader's position."""
        position = self._split_state(state) if has_own_state(self._batches) else read_state(state)
        self.seed = self.seed if position.seed is None else position.seed
        position.seed = self.start(0).seed
        self.resume(position)

    def _split_state(self, state: Any) -> Position:
        position: Any = {"version": 1, "epoch": self.next_epoch, "batches": 0}
        own = state
        # A state without our key is the wrapped loader's own, saved before it was wrapped.
        if isinstance(state, Mapping) and _OURS in state:
            position = state[_OURS]
            own = {key: value for key, value in state.items() if key != _OURS}
            if isinstance(position, Mapping):
                own = position.get("source", own)
        found = read_state(position)
        self.forget_prepared()  # its pass would continue in the wrapped loader
        self._batches.load_state_dict(own)
        found.own = own
        return found


class PrefetchedLoader(Measured):
    """A loader around another one, made by `prefetch`, which describes the parameters.

    Attributes that this loader lacks are those of the wrapped loader, such as ``sampler``, ``dataset`` and
    ``batch_size``. Setting them sets them there.

    Several loops may run at the same time if the wrapped loader allows that.
    """

    _epochs: WrappedEpochs

    def __init__(self, batches: Iterable[Any], **options: Any) -> None:
        if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | Mapping | type):
            advice = "; call it, and pass what it returns" if callable(batches) else ""
            raise BadType(
                "batches must be an iterable of batches, such as a loader, got "
                f"{type(batches).__name__}{advice}"
            )
        # Not by assignment: attributes are looked up in `_batches`, which is not there yet.
        vars(self).update(_batches=batches, _options=options)
        self._meter = Meter()
        self._epochs = WrappedEpochs(batches, self._meter, options)

    def __len__(self) -> int:
        """Return the number of steps in a pass; raise `TypeError` if the wrapped loader has no length."""
        delivery = self._epochs.delivery
        count, places = len(self._batches), len(delivery.devices)
        return count // places if delivery.drop_last else -(-count // places)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next pass, which begins when its first step is requested."""
        return Iteration(self._epochs.begin, self.__len__)

    def warm_up(self) -> None:
        """Prepare the first batch of the next loop now, so that the loop starts immediately.

        This begins a pass over the wrapped loader, which starts its workers. Everything else is as for
        `DataLoader.warm_up`. A generator that has been read already raises ReaderError.

        Examples
        --------
        >>> import gpuloader
        >>> loader = gpuloader.prefetch([[0, 1], [2, 3]], places="cpu")
        >>> loader.warm_up()
        >>> loader.stats().batches > 0, list(loader)
        (True, [[0, 1], [2, 3]])
        """
        self._epochs.prepare()

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop run epoch number `epoch`, counted from 0, in the wrapped loader as well.

        The random numbers of transforms follow the epoch even if the wrapped loader has no ``set_epoch``.
        """
        self._epochs.set_epoch(epoch)
        tell = getattr(self._batches, "set_epoch", None)
        if callable(tell):
            self._epochs.forget_prepared()  # the wrapped loader has already begun that pass
            tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped loader's own state as it was when it yielded the last batch that you received.

        Batches that were read ahead do not count. This loader and the wrapped one can both load the state;
        one additional key holds the position of this loader. If the wrapped loader has no ``state_dict``, the
        state is a count of batches.

        Examples
        --------
        >>> import gpuloader
        >>> inner = gpuloader.DataLoader(range(6), places="cpu", batch_size=2, seed=1)
        >>> epoch = iter(gpuloader.prefetch(inner, places="cpu"))
        >>> next(epoch)
        array([0, 1])
        >>> loader = gpuloader.prefetch(range(5), places="cpu")
        >>> next(iter(loader)), loader.state_dict()
        (0, {'version': 1, 'epoch': 0, 'batches': 1})
        """
        return self._epochs.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume at a state that this loader or the wrapped one returned.

        A wrapped loader with ``load_state_dict`` receives its own state immediately. Any other is read from
        its start, and the batches already delivered are dropped. They are the same batches only if the order
        is.

        Raises
        ------
        TypeError
            The state is not a dict.
        ValueError
            The state is damaged, or is not that of a loader.
        """
        self._epochs.resume_at(state)

    def __getattr__(self, name: str) -> Any:
        batches = vars(self).get("_batches", _MISSING)
        # Special names concern this class. Copying asks for some before `_batches` is there.
        if batches is _MISSING or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(batches, name)

    def __setattr__(self, name: str, value: object) -> None:
        own = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        if own or not hasattr(self._batches, name):
            super().__setattr__(name, value)
        else:
            setattr(self._batches, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self._batches, self._options)

    def __repr__(self) -> str:
        ahead, devices = self._epochs.ahead, self._epochs.delivery.devices
        told = f"{ahead} steps ahead" if ahead else "nothing ahead"
        places = ", ".join(device.name for device in devices)
        return f"<prefetch of {type(self._batches).__name__}: {told}, on {places}>"


def _make(batches: Iterable[Any], options: dict[str, Any]) -> PrefetchedLoader:
    """Return the loader that was pickled; version 0.1 pickled only the options that were passed."""
    return prefetch(batches, **options)


def _settle_once(outputs: Sequence[Any], programmer: Programmer | None) -> Callable[[str | None], str | None]:
    """Return a function that makes outputs deliver the arrays of a library; only its first call counts.

    The reading thread calls it with the library of the first batch. It must not refer to a loader, which
    would then live as long as that thread.
    """
    settled: list[str | None] = []

    def settle(library: str | None) -> str | None:
        if not settled:
            settled.append(library)
            for output in outputs:
                if isinstance(output, FollowingOutput):
                    output.settle(library)
            if programmer is not None:
                programmer.native = library == "torch"
        return settled[0]

    return settle
