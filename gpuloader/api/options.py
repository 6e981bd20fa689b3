"""The options of a loader: one table with the name, type, default and check of each.

`DataLoader` documents each option in its docstring, where editors show it. Every other loader, the attributes
of a loader and its copies take names, defaults and checks from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from gpuloader import checks
from gpuloader.checks import AUTO, THREAD, check_count, checked
from gpuloader.devices.outputs import OUTPUTS, check_stream
from gpuloader.epoch.delivery import Delivery
from gpuloader.errors import BadType, BadValue
from gpuloader.fetch.contract import METHODS
from gpuloader.fields.ragged import Padding
from gpuloader.order import dividing, order, randomness

CHUNKS = "chunks"
"""Shuffles the chunks of stored arrays, and the rows of a few chunks together."""

# Checks of one value, which is not the default; see `gpuloader.checks.Check`.


def check_workers(name: str, value: Any) -> int | str:
    """Return a number of workers, or 'auto'; raise `ValueError` for anything else."""
    if isinstance(value, str) and value == AUTO:  # an array would compare by its elements
        return value
    # True is an int in Python, and would be one worker.
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise BadValue(f"{name} must be 'auto' or an integer of 0 or more, got {value!r}")
    return int(value)


def check_optional_count(name: str, value: Any) -> int | None:
    """Return an integer of 1 or more, or None; raise `ValueError` for anything else."""
    return None if value is None else check_count(name, value)


def check_prefetch(name: str, value: Any) -> int | str:
    """Return an integer of 1 or more, or 'auto'; raise `ValueError` for anything else."""
    return AUTO if isinstance(value, str) and value == AUTO else check_count(name, value)


def check_names(name: str, value: Any) -> frozenset[str]:
    """Return names of fields; raise `TypeError` for anything else, such as a single string.

    >>> sorted(check_names("ragged", ["x", "y"]))
    ['x', 'y']
    """
    # A string is an iterable of letters, so ragged="x" would pass by accident and ragged="words" fail later.
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    names = list(value) if is_list else [value]
    if not is_list or not all(isinstance(one, str) for one in names):
        raise BadType(f"{name} must be a list of field names, got {names if is_list else value!r}")
    return frozenset(names)


def check_pads(name: str, value: Any) -> Mapping[str, float | Padding]:
    """Return how each field is filled up; raise `TypeError` unless numbers or `Padding` say how."""
    if not isinstance(value, Mapping) or not all(isinstance(field, str) for field in value):
        raise TypeError(f"{name} must map field names to fill values, got {value!r}")
    for field, fill in value.items():
        if not isinstance(fill, int | float | np.number | Padding):
            raise TypeError(f"{name} must fill field {field!r} with a number or a Padding, got {fill!r}")
    return dict(value)


def find_unit(transform: object) -> str:
    """Return what a transform works on: 'images' before their batch is made, 'batches', or nothing.

    >>> from gpuloader.transforms import Cast, Resize
    >>> find_unit(Resize(None, 8)), find_unit(Cast(None, "float32")), find_unit(print)
    ('images', 'batches', '')
    """
    if isinstance(transform, type):
        return ""
    # By their methods, not their classes: transforms may be the user's own, and importing ours takes long.
    has = partial(hasattr, transform)
    if all(map(has, ("field", "extend"))):
        return "images"
    return "batches" if all(map(has, ("field", "draws", "bind", "draw", "check"))) else ""


def check_transforms(name: str, value: Any) -> list[Any]:
    """Return transforms as a list; raise `TypeError` if one is not a transform."""
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of transforms, got {type(value).__name__}")
    listed = list(value)  # an iterator would be empty for a copy of the loader
    for transform in listed:
        if not find_unit(transform):
            got = type(transform).__name__
            if isinstance(transform, type):
                got = f"the class {transform.__name__}; pass an instance of it"
            raise TypeError(f"expected a transform, got {got}; see gpuloader.transforms")
    return listed


@dataclass(slots=True, eq=False, repr=False)
class Options:
    """The options of a `DataLoader`, in the order of its parameters, each checked alone and then with others.

    >>> options = Options([1, 2], batch_size=2, multiprocessing_context="spawn")
    >>> options.batch_size, options.shuffle, options.start_method
    (2, False, 'spawn')
    """

    dataset: Any
    feed_list: Any = None
    places: Any = None
    return_list: bool = checked(bool, True)
    batch_sampler: Iterable[Any] | None = None
    batch_size: int | None = 1
    shuffle: bool | str | None = checked(partial(checks.check_switch, CHUNKS), False)
    drop_last: bool = checked(bool, False)
    collate_fn: Callable[[Any], Any] | None = checked(checks.check_function, None)
    num_workers: int | str = checked(check_workers, 0)
    use_buffer_reader: bool | str = checked(partial(checks.check_switch, THREAD), True)
    prefetch_factor: int | None = checked(check_optional_count, 2)
    use_shared_memory: bool = True
    timeout: float = checked(checks.check_seconds, 0)
    worker_init_fn: Callable[[int], object] | None = checked(checks.check_function, None)
    persistent_workers: bool = checked(bool, False)
    sampler: Iterable[Any] | None = None
    # As many bits as the seeds of PyTorch's generators, so that `torch.initial_seed()` can be passed on.
    seed: int | None = checked(partial(order.check_whole, limit=2**64), None)
    generator: randomness.GeneratorLike = None
    prefetch: int | str = checked(check_prefetch, 1)
    memory_budget: int | None = None
    in_order: bool = checked(bool, True)
    worker_type: str | None = checked(("process", "thread"), None)
    start_method: str | None = checked(METHODS, None)
    multiprocessing_context: Any = None
    on_worker_death: str = checked(("raise", "respawn"), "raise")
    ragged: Iterable[str] = checked(check_names, ())
    pad: Mapping[str, float | Padding] | None = checked(check_pads, None)
    targets: str | None = checked(("list",), None)
    transforms: Sequence[Any] = checked(check_transforms, ())
    decode: str | None = checked(("image", "device"), None)
    on_bad: str = checked(("raise", "skip"), "raise")
    cache: str | None = checked(("host", "device"), None)
    split: str = checked(("batches", "shards"), "batches")
    remainder: str | None = checked(("error", "drop", "pad"), None)
    output: str | None = checked(OUTPUTS, None)
    stream: object = checked(check_stream, None)
    copy_priority: str | None = None
    static: bool = checked(bool, False)
    copy: bool = checked(bool, True)
    shard: str | tuple[int, int] | None = None
    uneven: str | None = checked(dividing.UNEVEN, None)
    pin_memory: bool = False
    pin_memory_device: str = ""

    def __post_init__(self) -> None:
        # PyTorch's second and third arguments are batch_size and shuffle; Paddle's and ours are feed_list and
        # places. A number is never a feed_list and a bool never a place, so the two orders can be told apart.
        if isinstance(self.feed_list, int | np.integer) or isinstance(self.places, bool):
            for name, value in _read_pytorch_order(self).items():
                setattr(self, name, value)
        if self.shuffle is None:
            self.shuffle = False  # PyTorch's default
        for row in fields(self):
            value = getattr(self, row.name)
            if value is not row.default:  # most options of most loaders have their defaults
                setattr(self, row.name, checks.check_parameter(row, value))
        if self.multiprocessing_context is not None:
            # A copy has only the start method: it leads to the same context, and a context may not pickle.
            self.start_method = _resolve_start_method(self)
            self.multiprocessing_context = None

        # Options that depend on each other. Rules that need more than options are checked where the facts are
        # known: in `loading.decide`, `Batching.choose` and `Batching.divide`.
        if self.generator is not None:
            if self.seed is not None:
                raise ValueError("seed and generator both determine everything random: pass one of them")
            if isinstance(self.generator, int | np.integer):
                raise TypeError(
                    f"generator must be a generator of random numbers, got {self.generator!r}; write seed="
                )
        if self.ragged or self.pad:
            if self.collate_fn is not None or self.batch_size is None:
                raise ValueError(f"ragged and pad {OWN_BATCHES}")
            if both := sorted(frozenset(self.ragged) & (self.pad or {}).keys()):
                raise ValueError(f"the fields {both} are in both ragged and pad; choose one for each")


OWN_BATCHES = "need batches that the loader collates itself: pass no collate_fn, and an integer batch_size"


def check_uncopied(delivery: Delivery, *, makes: bool, static: bool) -> None:
    """Raise `ValueError` unless batches can be delivered without a copy.

    `makes` says that the loader makes the batches, not the user's code. A device copies from slots, and so
    does a loader with fixed addresses.
    """
    if makes:
        raise ValueError(
            "copy=False delivers arrays that your code has made, but this loader makes batches of samples: "
            "pass batch_size=None for a dataset of ready batches, a collate_fn, or set_batch_generator"
        )
    if not delivery.on_host or delivery.locker is not None or static:
        what = "static=True" if static else f"batches for {delivery.devices[0].name}"
        raise ValueError(
            f"copy=False delivers arrays where they lie, in ordinary host memory, but {what} must be copied "
            "to memory of the loader: pass places='cpu' without static, or leave out copy"
        )


def check_option(name: str, value: Any) -> Any:
    """Return the value of an option that another loader shares, checked as a `DataLoader` checks it.

    >>> check_option("static", True), check_option("output", "numpy")
    (True, 'numpy')
    """
    row = Options.__dataclass_fields__[name]
    return value if value is row.default else checks.check_parameter(row, value)


def _read_pytorch_order(options: Options) -> dict[str, Any]:
    """Return the options that a call such as ``DataLoader(dataset, 32, True)`` means, by name."""
    advice = "or import DataLoader from gpuloader.torch, which takes PyTorch's arguments in PyTorch's order"
    given, second = options.feed_list, options.places
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        if isinstance(second, bool):
            raise TypeError(f"places must be places, got {second!r}; write shuffle={second!r}, {advice}")
        return {}
    if options.batch_size != 1 or options.return_list is not True:
        raise TypeError(
            f"the second argument is {given}, which is PyTorch's batch_size, but later arguments do not "
            f"follow PyTorch's order here: pass all arguments after the dataset by name, {advice}"
        )
    if not isinstance(second, bool):
        return {"feed_list": None, "batch_size": int(given)}
    if options.shuffle:
        raise TypeError("shuffle was passed twice: as the third argument and by name")
    return {"feed_list": None, "batch_size": int(given), "places": None, "shuffle": second}


def _resolve_start_method(options: Options) -> str:
    """Return the start method of PyTorch's option ``multiprocessing_context``: a name, or a context."""
    context = options.multiprocessing_context
    # By its method: contexts of other libraries, such as torch.multiprocessing, have no common class.
    read = getattr(context, "get_start_method", None)
    method = read() if callable(read) else context
    if not isinstance(method, str):
        raise TypeError(
            "multiprocessing_context must be a start method or a context of multiprocessing, got "
            f"{type(context).__name__}"
        )
    checks.check_word("multiprocessing_context", method, METHODS)
    if options.start_method not in (None, method):
        raise ValueError(
            f"start_method={options.start_method!r} contradicts the multiprocessing_context for {method!r}: "
            "pass one"
        )
    return method


DEPRECATED = {
    # One option for ranks and places: padding among ranks implies padding among places.
    "remainder": "pass uneven, which decides for ranks and places alike",
    "memory_budget": "it has no effect: 'auto' keeps slots within 1 GiB and half of the available memory",
    "copy_priority": "it has no effect: transforms run ahead of your model's kernels",
}
