"""The side of a `DataLoader` that is about epochs and where in one its user is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuloader.loader.loading import Loading
from gpuloader.loader.state import Course, Progress, read_state
from gpuloader.order.computed import check_whole


class Resumable:
    """Epochs by number, and states to go on from; the loader that inherits this has what they are about."""

    _seed: int | None
    _course: Course
    _loading: Loading

    def _fresh_progress(self, epoch: int) -> Progress:
        if self._seed is None:
            self._seed = int(np.random.randint(2**31))
        return self._loading.fresh(self._seed, epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop epoch number `epoch`, from 0; the one after it follows on.

        An epoch that `load_state_dict` set to go on goes on if it is this one.

        >>> from gpuloader import DataLoader
        >>> loader = DataLoader(range(100), places="cpu", shuffle=True, seed=1, batch_size=3)
        >>> first = next(iter(loader))
        >>> loader.set_epoch(0)
        >>> bool((next(iter(loader)) == first).all())
        True
        """
        self._course.set_epoch(check_whole("epoch", epoch, 2**64))

    def state_dict(self) -> dict[str, Any]:
        """Return how far the user of the latest epoch has come, as plain JSON-able data under 1 kB.

        Batches fetched ahead do not count: what counts is what was received. A dataset that is iterable
        and offers ``state_dict`` itself (in the main process or in worker processes) adds its own state,
        of its own size. With `shard` the state is seed, epoch and position in the epoch, the same on all
        ranks that have received as many batches: any one's will do for all.

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
        """Make the next loop go on where the user of another loader had come.

        That one may have had other workers, another batch size, and, with `shard`, another number of ranks:
        every sample of the epoch that is left comes once. Nothing is fetched twice: the order is entered in
        its middle. A batch sampler of the user's own is asked for the indices before, without fetching them;
        an iterable dataset without a ``state_dict`` of its own, or with `shard`, is read from the start and
        what was received is dropped.

        Raises
        ------
        TypeError, ValueError
            This is no state; or one that counts batches where they may be of any size, as those of a batch
            sampler or cut into shards are; or of other workers where that matters: without `shard`, an
            iterable dataset's order depends on how many there are.

        Examples
        --------
        >>> from gpuloader import DataLoader
        >>> ranks = [DataLoader(range(10), shard=(rank, 2), places="cpu", batch_size=2) for rank in (0, 1)]
        >>> [next(iter(loader))[0].tolist() for loader in ranks]
        [[0, 1], [2, 3]]
        >>> states = [loader.state_dict() for loader in ranks]
        >>> states[0] == states[1], states[0]["position"]
        (True, 4)
        >>> alone = DataLoader(range(10), shard=(0, 1), places="cpu", batch_size=4)
        >>> alone.load_state_dict(states[0])
        >>> [(batch.tolist(), mask.tolist()) for batch, mask in alone]
        [([4, 5, 6, 7], [True, True, True, True]), ([8, 9], [True, True])]
        """
        progress = read_state(state)
        if progress.seed is None:
            raise ValueError("this is the state of a loader made by DataLoader.from_generator")
        progress = self._loading.adopt(progress)
        self._seed = progress.seed
        self._course.resume(progress)
