"""`prefetch`: copy the batches of any other loader to a GPU ahead of the loop over them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpuloader.api.options import check_collation, check_seed, check_transform_places, check_transforms
from gpuloader.api.state import OF_BATCHES, Cursor, Progress, end_epoch, find_spent_batches, read_state
from gpuloader.batches.kept import Intake, NestedStager
from gpuloader.batches.readers import Reached, close_items, stage_all
from gpuloader.batches.schema import build_batch
from gpuloader.batches.staged import StagedBatch
from gpuloader.devices.foreign import current_cuda_device
from gpuloader.devices.opening import default_place
from gpuloader.devices.outputs import FollowingOutput, check_output
from gpuloader.devices.places import parse_places
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.epoch import (
    DeliveredStep,
    Epoch,
    EpochBuffers,
    Iteration,
    KernelsAhead,
    open_epoch,
    take_buffers,
)
from gpuloader.errors import BadType
from gpuloader.fetch.contract import Fetch
from gpuloader.fetch.read_ahead import InlineFetch, ReadAhead
from gpuloader.order.order import check_whole
from gpuloader.order.randomness import Draw
from gpuloader.order.worker_info import find_local_rank
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.iterators import Steady, refuse_read
from gpuloader.system.platforms import usable_cores
from gpuloader.system.threads import check_not_reading
from gpuloader.transforms.program import Transform
from gpuloader.watch.explaining import Configuration, Measured
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy
from gpuloader.watch.stats import Meter

# One pass over the iterable that `prefetch` wraps, and the states of that iterable on the way.


@dataclass(frozen=True, slots=True)
class Moment:
    """What was true of the iterable right after it yielded a batch.

    Attributes
    ----------
    own : object
        The iterable's own state; None if it has none.
    is_last : bool
        Whether the iterable has announced that batch as its last one.
    """

    own: Any
    is_last: bool


_NOTHING = Moment(None, False)


def has_state(batches: Any) -> bool:
    """Return whether an iterable can return its state and resume from it.

    >>> has_state([1, 2])
    False
    """
    # Accelerate's loaders have the methods, whether or not the loader inside has.
    inside = getattr(batches, "base_dataloader", batches)
    methods = ("state_dict", "load_state_dict")
    return all(callable(getattr(one, name, None)) for one in (batches, inside) for name in methods)


class PrefetchedSource:
    """One pass over an iterable of batches: the reader of an epoch, as `stage_all` takes it.

    The iterator is made by the thread that asks for the first batch, because loaders start their worker
    processes then. Batches may be read by another thread, and further ahead than the user is. So each
    batch takes along what was true of the iterable when it was read.

    Loaders prepared by Accelerate announce their last batch to the whole program. That must not happen before
    the user has received it, so it is taken back when the batch is read, and repeated by `delivered`. Such a
    loader is to be read by the thread that asks for batches.

    Parameters
    ----------
    batches : iterable
        What is read.
    stateful : bool
        Whether to ask the iterable for its state after every batch.

    Attributes
    ----------
    announces : bool
        Whether the iterable announces its last batch.

    Raises
    ------
    ReaderError
        The iterable is a generator that has been read already.
    """

    def __init__(self, batches: Any, *, stateful: bool) -> None:
        refuse_read(batches, "the iterable of batches is", OF_BATCHES)
        self._batches = batches
        self._stateful = stateful
        self.announces = hasattr(batches, "end_of_dataloader") and hasattr(batches, "gradient_state")
        self._is_last = False
        self._items = Steady.of(iter(batches))

    def __call__(self) -> Iterator[Any]:
        """Return the iterator of the pass."""
        return self._read_to_last() if self.announces else self._items

    def _read_to_last(self) -> Iterator[Any]:
        """Yield the batches up to the announced last one, behind which the iterable would end its pass."""
        try:
            for batch in self._items:
                self._is_last = self._batches.end_of_dataloader
                self._batches.end_of_dataloader = False
                yield batch
                if self._is_last:
                    return
        finally:
            if not self._is_last:
                close_items(self._items)

    def state_dict(self) -> Moment:
        """Return what is true of the iterable now; called right after each batch was read."""
        if not (self._stateful or self._is_last):
            return _NOTHING
        return Moment(self._batches.state_dict() if self._stateful else None, self._is_last)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the iterable has had its state since the user loaded it."""

    def delivered(self, staged: StagedBatch) -> None:
        """Reduce the state of a batch to the iterable's own, because the user has received it."""
        moment: Moment = staged.state
        staged.state = moment.own
        if moment.is_last:
            self._batches.end_of_dataloader = True

    def finish(self) -> None:
        """Let the iterable end its pass; called when the user has received every batch."""
        if self._is_last:
            next(self._items, None)


_OURS = "gpuloader_prefetch"
"""The key under which a state of the wrapped loader takes along the position of this one."""
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
    arrays and tensors are on the GPU. They are copied from page-locked memory, on a stream of their own,
    while you compute on the batch before, and their memory is not reused before your work on it has run.

    Parameters
    ----------
    batches : iterable
        What yields batches in host memory: a loader of PyTorch, a dataset of Hugging Face or tf.data, a list,
        a generator. A batch is any nesting of dicts, tuples, lists and dataclasses. Its arrays and tensors
        are copied, everything else is handed through: text, numbers, None, sparse tensors, tensors on a GPU.
        Batches may differ in shapes and keys. Each loop is one pass over the iterable.
    places : place, str, torch.device, or list of them, or None
        Where batches land. None uses the GPU of this process, or host memory if there is no GPU. With several
        places, consecutive batches go to them in turn, and each step is a list with one entry per place.
    prefetch : int
        Steps to copy to a GPU ahead of the current one. On a CPU place, batches to read ahead, in a thread
        where that pays. 0 reads and copies each batch when you ask for it.
    output : str or None
        The library whose arrays make up a batch, as for `DataLoader`. None means the library of the
        batches: tensors of PyTorch, JAX and Paddle remain theirs, and NumPy arrays become CuPy's on a GPU.
    host : list of str
        Names of fields that stay as they are, in host memory. A nested field is named ``outer.inner``. The
        name of a container stands for everything in it.
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
    Tensors that are page-locked already, as with ``pin_memory=True``, are copied from where they lie, and
    kept until their copy has run; do not write to them. All others go through the loader's own page-locked
    memory, so ``pin_memory`` is not needed.

    On a CPU place each batch is the very object that the iterable yields, unless `output` or `transforms`
    demand another. An iterable that writes all its batches into the same arrays needs ``prefetch=0`` there.

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
        batches,
        places=places,
        prefetch=prefetch,
        output=output,
        host=host,
        transforms=transforms,
        stream=stream,
        drop_last=drop_last,
        seed=seed,
    )


class PrefetchedLoader(Measured):
    """A loader around another one, made by `prefetch`, which describes the parameters.

    Attributes that it does not have are those of the wrapped loader, such as ``sampler``, ``dataset`` and
    ``batch_size``, and can be set there through it.

    Several loops may run at once if the wrapped loader allows that.
    """

    def __init__(self, batches: Iterable[Any], **options: Any) -> None:
        vars(self).update(_batches=_check_batches(batches), _options=options)
        self._open(**options)

    def _open(
        self,
        *,
        places: Any,
        prefetch: int,
        output: str | None,
        host: Sequence[str],
        transforms: Sequence[Transform],
        stream: object,
        drop_last: bool,
        seed: int | None,
    ) -> None:
        ahead = check_whole("prefetch", prefetch, 1 << 31)
        if places is None:
            places = default_place(current_cuda_device() or find_local_rank())
        parsed = parse_places(places)
        listed = check_transforms(transforms, batches_only=True)
        delivery = Delivery.of(
            parsed,
            check_output(output),
            stream,
            prefetch=ahead,
            drop_last=drop_last,
            urgent=bool(listed),
        )
        if output is None:
            following = tuple(FollowingOutput(device, stream) for device in delivery.devices)
            delivery = replace(delivery, outputs=following)
        check_transform_places(listed, delivery)
        collation = check_collation(
            feeds=None,
            collate_fn=None,
            batched=True,
            ragged=(),
            pad=None,
            transforms=listed,
            on_host=delivery.on_host,
            output=output,
        )
        self._ahead = ahead
        self._delivery = delivery
        self._programmer = collation.programmer
        self._kernels = None if delivery.on_host else KernelsAhead(delivery.devices)
        if self._programmer is not None and self._kernels is not None:
            self._programmer.planned = self._kernels.begin
        self._library: Any = _MISSING
        self._draws = any(one.draws for one in listed)
        self._seed = check_seed(seed)
        self._intake = Intake(
            collation,
            _check_host(host),
            output,
            delivery.on_host and delivery.locker is None and not listed,
            _settle_weakly(weakref.ref(self)),
            None if delivery.has_host else delivery.devices[0].is_page_locked,
        )
        self._policy = ReadAheadPolicy(bound=True)
        self._meter = Meter()
        self._token = object()
        self._idle: deque[EpochBuffers] = deque(maxlen=1)
        self._course = Cursor(self._start)
        # The wrapped loader's state before `warm_up` began a pass over it, until the user begins that pass.
        self._before: Any = _MISSING

    def _settle(self, library: str | None) -> str | None:
        """Deliver arrays of a library, that of the first batch; return it. Later calls change nothing."""
        if self._library is _MISSING:
            self._library = library
            for output in self._delivery.outputs:
                if isinstance(output, FollowingOutput):
                    output.settle(library)
            if self._programmer is not None:
                self._programmer.native = library == "torch"
        found: str | None = self._library
        return found

    def _start(self, epoch: int) -> Progress:
        """Return the progress at the start of an epoch."""
        if self._draws and self._seed is None:
            self._seed = int(np.random.randint(2**31))
        return Progress(self._seed if self._draws else None, epoch)

    def __len__(self) -> int:
        """Return the number of steps in a pass.

        Raises
        ------
        TypeError
            The wrapped loader has no length.
        """
        count, places = len(self._batches), len(self._delivery.devices)
        return count // places if self._delivery.drop_last else -(-count // places)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next pass, which begins when its first step is requested."""
        return Iteration(self._begin, self.__len__)

    def warm_up(self) -> None:
        """Do now what the first batch of the next loop would wait for; that loop then begins at once.

        Begins a pass over the wrapped loader, which starts its workers; allocates and page-locks the slots,
        reads the first step, copies it to its places, and compiles and runs the kernels of the transforms.
        Returns when all that is done. Batches, their order and the loader's state stay the same; an error
        that the wrapped loader raises for a batch is raised by the loop. If `set_epoch` or `load_state_dict`
        changes what comes next, the step is dropped.

        Raises
        ------
        LoaderError
            The calling thread captures a CUDA graph.
        ReaderError
            The wrapped iterable is a generator that has been read already.
        StagingMemoryError
            Host or device memory is not available.

        Examples
        --------
        >>> import gpuloader
        >>> loader = gpuloader.prefetch([[0, 1], [2, 3]], places="cpu")
        >>> loader.warm_up()
        >>> loader.stats().batches > 0, list(loader)
        (True, [[0, 1], [2, 3]])
        """
        self._check_ready()
        self._course.prepare(self._open_prepared)

    def _open_prepared(self, progress: Progress) -> Iteration:
        before = self._batches.state_dict() if has_state(self._batches) else _MISSING
        epoch = self._open_epoch(progress)
        epoch.prepare()
        self._before = before
        return epoch

    def _begin(self) -> Iteration:
        self._check_ready()
        epoch = self._course.begin(self._open_epoch)
        self._before = _MISSING
        return epoch

    def _check_ready(self) -> None:
        check_not_reading(self._token)
        self._delivery.refuse_capture()

    def _open_epoch(self, progress: Progress) -> Iteration:
        guard = Finalizer()
        source = PrefetchedSource(self._batches, stateful=has_state(self._batches))
        # One more than is copied ahead: a batch that is read when it is asked for would be copied late.
        capacity = (self._ahead + (not self._delivery.on_host or not self._ahead)) * len(
            self._delivery.devices
        )
        buffers = take_buffers(self._idle, self._delivery, capacity, self._meter, programmer=self._programmer)
        stager = NestedStager(self._intake, buffers.ring, self._meter, Draw(progress.seed, progress.epoch))
        batches = stage_all(source, stager, Reached(progress.batches, 1, progress.own), self._token)
        fetch: Fetch = InlineFetch(batches)
        if self._ahead:
            # What a loader announces while it is read must not be seen before `next` returns.
            policy = ReadAheadPolicy(bound=True, read=1.0) if source.announces else self._policy
            fetch = ReadAhead(batches, buffers.ring, capacity, policy, bound=True, eager=True)
        epoch = Epoch(
            buffers,
            fetch,
            partial(self._present, progress, source),
            self._idle,
            drop_last=self._delivery.drop_last,
            meter=self._meter,
            ended=partial(self._end, progress, source),
            kernels=self._kernels,
        )
        return open_epoch(epoch, guard)

    def _present(self, progress: Progress, source: PrefetchedSource, step: DeliveredStep) -> Any:
        batches: list[Any] = []
        for staged, arrays in step:
            source.delivered(staged)
            progress.received(staged)
            assert staged.tree is not None
            batches.append(build_batch(staged.tree, staged.levels, arrays, staged.objects))
        return batches[0] if len(self._delivery.devices) == 1 else batches

    def _end(self, progress: Progress, source: PrefetchedSource) -> None:
        source.finish()
        end_epoch(progress, partial(find_spent_batches, self._batches, drops=self._delivery.drop_last))

    def _configuration(self) -> Configuration:
        policy = self._policy if self._ahead else None
        threads = int(policy is not None and policy.threaded)
        places = len(self._delivery.devices)
        return Configuration("batches", threads, "thread", usable_cores(), places, policy=policy)

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop run epoch number `epoch`, counted from 0, also of the wrapped loader.

        The random numbers of transforms follow the epoch, also if the wrapped loader has no ``set_epoch``.
        """
        self._course.set_epoch(check_whole("epoch", epoch, 2**64))
        tell = getattr(self._batches, "set_epoch", None)
        if callable(tell):
            self._forget_prepared()  # the wrapped loader would be told of a pass that it has begun
            tell(epoch)

    def _forget_prepared(self) -> None:
        self._course.forget_prepared()
        self._before = _MISSING

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped loader's own state as it was when it yielded the batch that you received last.

        So batches that were read ahead do not count. The state can be loaded here, and by the wrapped loader
        itself; one key more holds the position of this loader. If the wrapped loader has no ``state_dict``,
        the state is a count of batches.

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
        position = self._course.state()
        if not has_state(self._batches):
            return position
        own = position.pop("source", _MISSING)
        if own is _MISSING:  # nothing is read ahead between two passes
            own = self._batches.state_dict() if self._before is _MISSING else self._before
        if not isinstance(own, Mapping):
            return {_OURS: {**position, "source": own}}
        return {**own, _OURS: position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume at a state that this loader or the wrapped one returned.

        A wrapped loader with ``load_state_dict`` is given its own state at once. Any other is read from its
        start, and the batches already delivered are dropped: they are the same ones only if its order is.

        Raises
        ------
        TypeError
            The state is not a dict.
        ValueError
            The state is damaged, or is not that of a loader.
        """
        progress = self._load_own(state) if has_state(self._batches) else read_state(state)
        self._seed = self._seed if progress.seed is None else progress.seed
        progress.seed = self._start(0).seed
        self._course.resume(progress)

    def _load_own(self, state: Any) -> Progress:
        """Give the wrapped loader its own state, and return the position of this one."""
        position: Any = {"version": 1, "epoch": self._course.upcoming().epoch, "batches": 0}
        own = state
        if isinstance(state, Mapping) and _OURS in state:
            position = state[_OURS]
            own = {key: value for key, value in state.items() if key != _OURS}
            if isinstance(position, Mapping):
                own = position.get("source", own)
        progress = read_state(position)
        self._forget_prepared()
        self._batches.load_state_dict(own)
        progress.own = own
        return progress

    def __getattr__(self, name: str) -> Any:
        batches = vars(self).get("_batches", _MISSING)
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
        places = ", ".join(device.name for device in self._delivery.devices)
        ahead = f"{self._ahead} steps ahead" if self._ahead else "nothing ahead"
        return f"<prefetch of {type(self._batches).__name__}: {ahead}, on {places}>"


def _settle_weakly(owner: Callable[[], PrefetchedLoader | None]) -> Callable[[str | None], str | None]:
    """Return a loader's `_settle`, for the thread that reads: the loader must not live as long as that."""

    def settle(library: str | None) -> str | None:
        loader = owner()
        return library if loader is None else loader._settle(library)

    return settle


def _make(batches: Iterable[Any], options: dict[str, Any]) -> PrefetchedLoader:
    return PrefetchedLoader(batches, **options)


def _check_batches(batches: object) -> Any:
    if isinstance(batches, Iterable) and not isinstance(batches, str | bytes | Mapping | type):
        return batches
    advice = "; call it, and pass what it returns" if callable(batches) else ""
    raise BadType(
        f"batches must be an iterable of batches, such as a loader, got {type(batches).__name__}{advice}"
    )


def _check_host(host: Any) -> frozenset[str]:
    if isinstance(host, str) or not isinstance(host, Iterable):
        raise BadType(f"host must be a list of field names, got {host!r}")
    names = frozenset(host)
    if not all(isinstance(name, str) for name in names):
        raise BadType(f"host must be a list of field names, got {host!r}")
    return names
