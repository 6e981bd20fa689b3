"""`DataLoader.from_generator`: make a loader over a reader, as in Paddle."""

from __future__ import annotations

from collections.abc import Sequence

from gpuloader.devices.interop import check_output
from gpuloader.fields.spec import FeedSpec
from gpuloader.loader.generator_loader import GeneratorLoader


def from_generator(
    feed_list: Sequence[FeedSpec | str] | None = None,
    capacity: int | None = None,
    use_double_buffer: bool | str = True,
    iterable: bool = True,
    return_list: bool = False,
    use_multiprocess: bool = False,
    drop_last: bool = True,
    *,
    output: str | None = None,
    stream: object = None,
    static: bool = False,
) -> GeneratorLoader:
    """Return a loader that reads from a generator function, like Paddle's `DataLoader.from_generator`.

    Parameters
    ----------
    feed_list : list of FeedSpec or str, or None
        The fields, declared with `gpuloader.data`. Each step is then a list with one entry per place, and an
        entry is a dict from field name to array. None takes shapes and dtypes from the first batch; a step is
        then the flat list of arrays, or a list of such lists with several places.
    capacity : int
        The number of batches that may be read ahead, 1 or more. The loader uses host memory for that many
        batches and a few more, all reserved once the first batch is known.
    use_double_buffer : bool or 'thread'
        True reads ahead while the consumer computes, in a thread where that pays, and copies the next step to
        a GPU while the current one is computed on. 'thread' always reads in a thread. False runs everything
        in the consumer's thread and reads nothing ahead.
    iterable : bool
        True: loop over the loader. False: call `start`, then `next` until `EOFException`, then `reset`.
    return_list : bool
        False makes each entry a dict. True makes it a list in the order of feed_list.
    use_multiprocess : bool
        True runs the reader in its own process, which sends its items through a pipe. False runs it in this
        process.
    drop_last : bool
        True drops a last step that lacks a batch for any of several places. False delivers it.
    output, stream, static
        The library whose arrays make up a batch, the CUDA stream on which you use it, and whether every batch
        is delivered at the same addresses, as for `DataLoader`.

    Returns
    -------
    GeneratorLoader
        A loader without a source: call one of its setters, then iterate.

    Raises
    ------
    ValueError
        The capacity is not an integer of 1 or more, or the feed list is empty, names an unknown field, or
        names a field twice.
    TypeError
        An entry of the feed list is neither a feed spec nor a name.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader.from_generator(capacity=4, return_list=True)
    >>> def batches():
    ...     for start in range(0, 6, 2):
    ...         yield [np.arange(start, start + 2)]
    >>> [numbers.tolist() for numbers, in loader.set_batch_generator(batches, places="cpu")]
    [[0, 1], [2, 3], [4, 5]]
    """
    return GeneratorLoader(
        feed_list,
        capacity,
        use_double_buffer=use_double_buffer,
        iterable=iterable,
        return_list=return_list,
        use_multiprocess=use_multiprocess,
        drop_last=drop_last,
        output=check_output(output),
        stream=stream,
        static=static,
    )
