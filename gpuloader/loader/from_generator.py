"""`DataLoader.from_generator`: a loader around a reader, as Paddle's of this name."""

from __future__ import annotations

from collections.abc import Sequence

from gpuloader.devices.interop import check_output
from gpuloader.fields.spec import FeedSpec
from gpuloader.loader.generator_loader import GeneratorLoader


def from_generator(
    feed_list: Sequence[FeedSpec | str] | None = None,
    capacity: int | None = None,
    use_double_buffer: bool = True,
    iterable: bool = True,
    return_list: bool = False,
    use_multiprocess: bool = False,
    drop_last: bool = True,
    *,
    output: str | None = None,
    stream: object = None,
) -> GeneratorLoader:
    """Return a loader that gets its data from a generator function; behaves as Paddle's of this name.

    Parameters
    ----------
    feed_list : list of FeedSpec or str, or None
        The fields, from `gpuloader.data`. Each step is then a list with one entry a place, an entry
        being a dict from field name to array. None: a step is the flat list of arrays (a list of
        such lists with several places), with the shapes and dtypes of the first batch.
    capacity : int
        Batches the queue holds, 1 or more. The loader's host memory is that many batches and a few
        more, reserved in full when the first batch is known.
    use_double_buffer : bool
        True: a thread reads ahead while the consumer computes, and on a GPU the next step is copied
        while this one is computed on. False: everything happens in the consumer's thread, nothing is
        read ahead, and no thread exists.
    iterable : bool
        True: loop over the loader. False: `start`, `next` until `EOFException`, `reset`.
    return_list : bool
        Entries are lists in feed_list order instead of dicts.
    use_multiprocess : bool
        Run the reader in a process of its own; its items travel through a pipe.
    drop_last : bool
        With several places: drop a last step that has no batch for each of them.
    output, stream
        Whose arrays a batch is made of, and what it is used on; as for `DataLoader`.

    Returns
    -------
    GeneratorLoader
        Set its source, then iterate.

    Raises
    ------
    ValueError
        The capacity is None, 0, negative or no integer, or the feed list is empty or ambiguous.
    TypeError
        The feed list holds something that is neither a feed spec nor a name.

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
    )
