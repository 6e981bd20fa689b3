"""PyTorch's ways to write a loader's options, translated into this package's."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuloader.base.checks import check_word
from gpuloader.fetch.worker_options import METHODS
from gpuloader.order.generators import GeneratorLike, draw_seed

_DROP_IN = "or import DataLoader from gpuloader.torch, which takes PyTorch's arguments in PyTorch's order"


def read_positions(
    feed_list: Any, places: Any, return_list: object, batch_size: int | None, shuffle: bool | None
) -> tuple[Any, Any, int | None, bool]:
    """Return feed_list, places, batch_size and shuffle, also of a call ``DataLoader(dataset, 32, True)``.

    PyTorch's second and third arguments are batch_size and shuffle, ours are feed_list and places, as in
    Paddle. A number is never a feed_list and a bool never a place, so both orders can be told apart.

    Raises
    ------
    TypeError
        The call mixes both orders, or continues in PyTorch's after shuffle.

    >>> read_positions(32, True, True, 1, False)
    (None, None, 32, True)
    """
    shuffled = False if shuffle is None else shuffle
    if isinstance(feed_list, bool) or not isinstance(feed_list, int | np.integer):
        if isinstance(places, bool):
            raise TypeError(f"places must be places, got {places!r}; write shuffle={places!r}, {_DROP_IN}")
        return feed_list, places, batch_size, shuffled
    if batch_size != 1 or return_list is not True:
        raise TypeError(
            f"the second argument is {feed_list}, which is PyTorch's batch_size, but later arguments do not "
            f"follow PyTorch's order here: pass all arguments after the dataset by name, {_DROP_IN}"
        )
    if isinstance(places, bool):
        if shuffled:
            raise TypeError("shuffle was passed twice: as the third argument and by name")
        places, shuffled = None, places
    return None, places, int(feed_list), shuffled


def resolve_seed(seed: Any, generator: int | GeneratorLike) -> Any:
    """Return the seed, or one drawn from a generator.

    Raises
    ------
    ValueError
        Both were passed.
    TypeError
        The generator is of another type.

    >>> resolve_seed(5, None), 0 <= resolve_seed(None, np.random.default_rng()) < 2**63
    (5, True)
    """
    if generator is None:
        return seed
    if seed is not None:
        raise ValueError("seed and generator both determine everything random: pass one of them")
    if isinstance(generator, int | np.integer):
        raise TypeError(f"generator must be a generator of random numbers, got {generator!r}; write seed=")
    return draw_seed(generator)


def resolve_start_method(start_method: str | None, context: Any) -> str | None:
    """Return how processes start: the `start_method`, or that of a multiprocessing context.

    Parameters
    ----------
    start_method : str or None
        Our option.
    context : str, multiprocessing context or None
        PyTorch's option ``multiprocessing_context``.

    Raises
    ------
    ValueError
        They contradict each other, or the context has an unknown name.
    TypeError
        The context is neither a name nor a multiprocessing context.

    >>> resolve_start_method(None, "spawn"), resolve_start_method("fork", None)
    ('spawn', 'fork')
    """
    if context is None:
        return start_method
    read = getattr(context, "get_start_method", None)
    method = read() if callable(read) else context
    if not isinstance(method, str):
        raise TypeError(
            "multiprocessing_context must be a start method or a context of multiprocessing, got "
            f"{type(context).__name__}"
        )
    check_word("multiprocessing_context", method, METHODS)
    if start_method not in (None, method):
        raise ValueError(
            f"start_method={start_method!r} contradicts the multiprocessing_context for {method!r}: pass one"
        )
    return method
