"""Declare feeds by name, in the current program, and find them again in a feed list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from numpy.typing import DTypeLike

from gpuloader.fields.spec import FeedSpec


class Program:
    """The feeds that `gpuloader.data` declared while this program was the current one.

    Loading code written for Paddle encloses its feeds in programs. A program here holds nothing but feeds: it
    cannot be run.

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
        """Add a feed; it replaces an earlier one of the same name."""
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
    feeds = tuple(_resolve_feed(entry, declared) for entry in feed_list)
    if not feeds:
        raise ValueError("feed_list is empty: name at least one field, or pass None for plain lists")
    names = [feed.name for feed in feeds]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"feed_list names {sorted(twice)} more than once")
    return feeds


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
    except Exception:  # Paddle raises its own errors for values that no such call declared
        return None
