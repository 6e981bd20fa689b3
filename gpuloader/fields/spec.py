"""Field declarations: a field's name, shape and dtype, and the programs in which names are declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.errors import BadTypeOrValue

Array = NDArray[Any]
Dims = tuple[int | None, ...]
Spec = tuple[tuple[int, ...], np.dtype[Any]]
"""An array's shape and dtype."""

Indices = Sequence[Any] | NDArray[np.int64]
"""The indices of a batch: a range, an int64 array, or a list of whatever a sampler yields."""


def plain_indices(indices: Iterable[Any]) -> list[Any]:
    """Return indices as a list, with those of an array as Python ints."""
    return indices.tolist() if isinstance(indices, np.ndarray) else list(indices)


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """A declared field: its name, the shape of one batch of it, and its dtype.

    Attributes
    ----------
    name : str
        The field's key in a dict batch.
    shape : tuple of int or None
        Shape of a batch, batch dimension first; None stands for any size.
    dtype : numpy.dtype
        The dtype samples are converted to; None means float32.
    lod_level : int
        0 for dense fields, 1 for sequences of varying length, 2 for sequences of such sequences.

    Examples
    --------
    >>> FeedSpec("image", (None, 784), "float32").sample_shape
    (784,)
    """

    name: str
    shape: Dims
    dtype: np.dtype[Any]
    lod_level: int = 0

    def __init__(
        self, name: str, shape: Sequence[int | None], dtype: DTypeLike = "float32", lod_level: int = 0
    ) -> None:
        if not isinstance(name, str) or not name:
            raise BadTypeOrValue(f"the name of a feed must be a non-empty string, got {name!r}")
        if isinstance(lod_level, bool) or lod_level not in (0, 1, 2):
            raise ValueError(f"feed {name!r}: lod_level must be 0, 1 or 2, got {lod_level!r}")
        sizes: object = shape  # the most common mistake is what the annotation excludes
        if isinstance(sizes, str) or not isinstance(sizes, Iterable):
            raise BadTypeOrValue(f"feed {name!r}: shape must be a list of dimensions, got {shape!r}")
        dims: list[int | None] = []
        for size in sizes:
            if size is None or (isinstance(size, int) and size == -1):
                dims.append(None)
            elif isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0:
                dims.append(int(size))
            else:
                problem = f"a dimension must be None, -1 or an integer >= 0, got {size!r}"
                raise ValueError(f"feed {name!r}: {problem}")
        if not dims:
            raise ValueError(f"feed {name!r}: shape must have at least the batch dimension, e.g. [None]")
        try:
            parsed = np.dtype("float32" if dtype is None else dtype)  # NumPy takes None for float64
        except TypeError as error:
            raise ValueError(f"feed {name!r}: {dtype!r} is not a dtype") from error
        # A plain dtype parses to the single object that NumPy keeps for it, so `is` works with samples'
        # dtypes.
        parsed = parsed if parsed.isnative else native(parsed)
        if not is_stageable(parsed):
            raise ValueError(f"feed {name!r}: a field must hold numbers or booleans, got dtype {parsed}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "shape", tuple(dims))
        object.__setattr__(self, "dtype", parsed)
        object.__setattr__(self, "lod_level", lod_level)

    @property
    def sample_shape(self) -> Dims:
        """Shape of one sample; for a ragged field, of one step of its sequence."""
        return self.shape[1:]

    @property
    def keeps_shapes(self) -> bool:
        """Whether values are not reshaped, because two or more free dimensions leave their shape open."""
        return not self.lod_level and self.shape.count(None) > 1


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return `dtype` in native byte order, the only byte order in which devices compute.

    >>> native(np.dtype(">f4")) is np.dtype("float32")
    True
    """
    # NumPy keeps one object per plain dtype. Looking it up by name returns that object, so that `is` works.
    return dtype if dtype.isnative else np.dtype(dtype.newbyteorder("=").str)


def is_stageable(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of `dtype` can be copied to a device as raw bytes.

    >>> is_stageable(np.dtype("float32")), is_stageable(np.dtype(object))
    (True, False)
    """
    return not dtype.hasobject and dtype.kind not in "USMm"


def describe(shape: Dims) -> str:
    """Return a shape as text, with a dash for a dimension of any size.

    >>> describe((None, 784))
    '(-, 784)'
    """
    sizes = ["-" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


class Program:
    """The feeds that `gpuloader.data` declared while this program was the current one.

    Loading code written for Paddle encloses its feeds in programs. A program here only holds feeds and cannot
    be run.

    Attributes
    ----------
    random_seed : int
        Kept for programs that set it; loading does not use it.

    Examples
    --------
    >>> train = Program()
    >>> with program_guard(train):
    ...     image = data("image", [None, 784])
    >>> train.global_block().var("image") is image
    True
    >>> default_main_program() is train
    False
    """

    random_seed = 0

    def __init__(self) -> None:
        self._feeds: dict[str, FeedSpec] = {}

    def declare(self, feed: FeedSpec) -> None:
        """Add a feed; it replaces an earlier feed of the same name."""
        self._feeds[feed.name] = feed

    def global_block(self) -> Program:
        """Return the program itself, which has only this one block."""
        return self

    def has_var(self, name: str) -> bool:
        """Return whether a feed of this name was declared."""
        return name in self._feeds

    def var(self, name: str) -> FeedSpec:
        """Return the feed of this name.

        Raises
        ------
        ValueError
            No feed of this name was declared in this program.
        """
        if name not in self._feeds:
            raise ValueError(
                f"no feed named {name!r} was declared in this program; declare it with "
                f"gpuloader.data({name!r}, …), inside the same program_guard if there is one"
            )
        return self._feeds[name]

    def list_vars(self) -> list[FeedSpec]:
        """Return the feeds, in the order of their declaration."""
        return list(self._feeds.values())

    def clone(self, for_test: bool = False) -> Program:  # noqa: ARG002
        """Return another program with the same feeds."""
        copy = type(self)()
        copy._feeds.update(self._feeds)
        return copy


_default = (Program(), Program())
_current: ContextVar[tuple[Program, Program]] = ContextVar("gpuloader_program", default=_default)


def default_main_program() -> Program:
    """Return the program in which `gpuloader.data` currently declares feeds.

    >>> default_main_program() is default_main_program()
    True
    """
    return _current.get()[0]


def default_startup_program() -> Program:
    """Return the startup program of the innermost `program_guard`; it holds no feeds.

    >>> default_startup_program() is default_main_program()
    False
    """
    return _current.get()[1]


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Make `main_program` the current program inside a ``with`` block, in this thread.

    Inside, `gpuloader.data` declares feeds in it, and feed lists find only its names.

    Parameters
    ----------
    main_program : Program
        The program to declare feeds in.
    startup_program : Program or None
        What `default_startup_program` returns inside; None keeps the current one.

    Raises
    ------
    TypeError
        An argument is not a `Program`.

    Examples
    --------
    >>> with program_guard(Program(), Program()):
    ...     words = data("words", [None, 1], "int64")
    ...     resolve_feeds(["words"]) == (words,)
    True
    """
    for name, program in (("main_program", main_program), ("startup_program", startup_program)):
        if not isinstance(program, Program) and not (name == "startup_program" and program is None):
            raise TypeError(f"{name} must be a Program, got {type(program).__name__}")
    token = _current.set((main_program, startup_program or default_startup_program()))
    try:
        yield
    finally:
        _current.reset(token)


def data(
    name: str, shape: Sequence[int | None], dtype: DTypeLike = "float32", lod_level: int = 0
) -> FeedSpec:
    """Declare a feed, as Paddle's ``fluid.data`` does.

    Parameters
    ----------
    name : str
        The field's name.
    shape : sequence of int or None
        Shape of a batch, batch dimension first; None and -1 stand for any size. See `FeedSpec` for what the
        loader checks.
    dtype : dtype-like
        The dtype samples are converted to; None means float32.
    lod_level : int
        0 for dense fields, 1 for sequences of varying length, 2 for sequences of such sequences.

    Raises
    ------
    ValueError
        The name is empty, a dimension is not None, -1 or an integer of 0 or more, the dtype is not
        numeric, or the level is not 0, 1 or 2.

    Examples
    --------
    >>> data("label", [-1, 1], "int64")
    FeedSpec(name='label', shape=(None, 1), dtype=dtype('int64'), lod_level=0)
    """
    feed = FeedSpec(name, shape, dtype, lod_level)
    default_main_program().declare(feed)
    return feed


def resolve_feeds(feed_list: object, program: Program | None = None) -> tuple[FeedSpec, ...]:
    """Return the feed specs of a feed list.

    Parameters
    ----------
    feed_list : list of FeedSpec, str or variable of Paddle
        The feeds: declared with `data`, their names, or what ``paddle.static.data`` returned.
    program : Program or None
        Where to look names up; None means the current program.

    Raises
    ------
    TypeError
        `feed_list` is not a list, or an entry is something else.
    ValueError
        The list is empty, or a name is unknown or occurs twice.

    Examples
    --------
    >>> label = data("label", [None, 1], "int64")
    >>> resolve_feeds(["label"]) == (label,)
    True
    """
    if isinstance(feed_list, str) or not isinstance(feed_list, Iterable):
        raise TypeError(f"feed_list must be a list of feeds, got {type(feed_list).__name__}")
    declared = default_main_program() if program is None else program
    feeds: dict[str, FeedSpec] = {}
    twice: set[str] = set()
    for entry in feed_list:
        feed = _resolve_feed(entry, declared)
        if feed.name in feeds:
            twice.add(feed.name)
        feeds[feed.name] = feed
    if not feeds:
        raise ValueError("feed_list is empty: name at least one field, or pass None for plain lists")
    if twice:
        raise ValueError(f"feed_list names {sorted(twice)} more than once")
    return (*feeds.values(),)


def _resolve_feed(entry: object, program: Program) -> FeedSpec:
    if isinstance(entry, FeedSpec):
        return entry
    if isinstance(entry, str):
        return program.var(entry)
    found = _read_variable(entry) if type(entry).__module__.startswith("paddle.") else None
    if found is None:
        raise TypeError(
            "feed_list must contain feeds declared with gpuloader.data or paddle.static.data, or their "
            f"names, got {type(entry).__name__}"
        )
    return FeedSpec(*found)


def _read_variable(variable: Any) -> tuple[str, list[int], str, int] | None:
    """Return name, shape, dtype and level of what ``paddle.static.data`` returned; None for anything else."""
    try:
        dtype = str(variable.dtype).rpartition(".")[2]
        return variable.name, list(variable.shape), dtype, getattr(variable, "lod_level", None) or 0
    except Exception:  # Paddle raises its own errors for values that no such call has declared
        return None
