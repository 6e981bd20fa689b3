"""The part of a `DataLoader` that numbers epochs, returns states and resumes from them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from gpuloader.loader.loading import Loading
from gpuloader.loader.state import Course, read_state
from gpuloader.order.computed import check_whole


class EpochOf:
    """The ``set_epoch`` of a loader's own sampler. It does not keep the loader alive; a copy does nothing.

    Parameters
    ----------
    loader : Resumable or None
        The loader whose epoch to set.
    """

    def __init__(self, loader: Resumable | None = None) -> None:
        self._loader = None if loader is None else weakref.ref(loader)

    def __call__(self, epoch: int) -> None:
        """Set the loader's epoch."""
        loader = None if self._loader is None else self._loader()
        if loader is not None:
            loader.set_epoch(epoch)

    def __reduce__(self) -> tuple[type[EpochOf], tuple[()]]:
        return EpochOf, ()


class Resumable:
    """Numbered epochs and resumable states; the loader that inherits this provides the attributes."""

    _course: Course
    _loading: Loading

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop run epoch number `epoch`, counted from 0; later loops continue from there.

        If `load_state_dict` set this same epoch to resume in its middle, the next loop still resumes it.

        >>> from gpuloader import DataLoader
        >>> loader = DataLoader(range(100), places="cpu", shuffle=True, seed=1, batch_size=3)
        >>> first = next(iter(loader))
        >>> loader.set_epoch(0)
        >>> bool((next(iter(loader)) == first).all())
        True
        """
        self._course.set_epoch(check_whole("epoch", epoch, 2**64))

    def state_dict(self) -> dict[str, Any]:
        """Return the user's position in the latest epoch, as a dict under 1 kB that JSON can store.

        Only delivered batches count, not batches fetched ahead. An iterable dataset with its own
        ``state_dict``, in the main process or in worker processes, adds its own state, of any size. With
        `shard`, the state is the seed, the epoch and the position in the epoch. It is the same on all ranks
        that have received the same number of batches, so any rank's state can resume every rank.

        Examples
        --------
        >>> from gpuloader import DataLoader
        >>> loader = DataLoader(range(6), places="cpu", batch_size=2, seed=1)
        >>> epoch = iter(loader)
        >>> next(epoch)
        array([0, 1])
        >>> state = loader.state_dict()
        >>> again = DataLoader(range(6), places="cpu", batch_size=2, num_workers=1, worker_type="thread")
        >>> again.load_state_dict(state)
        >>> [batch.tolist() for batch in again]
        [[2, 3], [4, 5]]
        """
        return self._course.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next loop resume at a state that this or another loader returned.

        That loader may have had other workers, another batch size and, with `shard`, another number of ranks.
        Each remaining sample of the epoch is delivered once. A map-style dataset is not read again, because
        the loader enters the order in its middle. With your own batch sampler, the loader steps through the
        earlier indices without fetching them. An iterable dataset that has no ``state_dict``, or is read with
        `shard`, is read from its start, and the samples already delivered are dropped.

        Raises
        ------
        TypeError
            The state is not a dict.
        ValueError
            The dict is not a loader's state. Or it counts batches of another size or kind than this loader's,
            as with a batch sampler or shards. Or it comes from another number of workers and the order
            depends on it, as with an iterable dataset without `shard`.

        Examples
        --------
        >>> from gpuloader import DataLoader
        >>> ranks = [DataLoader(range(10), shard=(rank, 2), places="cpu", batch_size=2) for rank in (0, 1)]
        >>> [next(iter(loader)).tolist() for loader in ranks]
        [[0, 1], [2, 3]]
        >>> states = [loader.state_dict() for loader in ranks]
        >>> states[0] == states[1], states[0]["position"]
        (True, 4)
        >>> alone = DataLoader(range(10), shard=(0, 1), places="cpu", batch_size=4)
        >>> alone.load_state_dict(states[0])
        >>> [batch.tolist() for batch in alone]
        [[4, 5, 6, 7], [8, 9]]
        """
        progress = read_state(state)
        if progress.seed is None:
            raise ValueError(
                "this is the state of a loader made by DataLoader.from_generator, not of one over a dataset"
            )
        self._course.resume(self._loading.adopt(progress))
