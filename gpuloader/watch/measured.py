"""What every loader tells of its own speed."""

from __future__ import annotations

from gpuloader.watch.explaining import Explanation, Setup, explain
from gpuloader.watch.stats import LoaderStats, Meter


class Measured:
    """A loader with a meter; the base of those that a user holds."""

    _meter: Meter

    def _setup(self) -> Setup:
        raise NotImplementedError

    def stats(self) -> LoaderStats:
        """Return where the time went since the loader was made.

        >>> from gpuloader import DataLoader
        >>> DataLoader([1, 2], places="cpu").stats().batches
        0
        """
        return self._meter.snapshot()

    def explain(self, since: LoaderStats | None = None) -> Explanation:
        """Return in words what bounds the loop over this loader, by how much, and which knob to turn.

        Parameters
        ----------
        since : LoaderStats or None
            An earlier snapshot: only what happened after it counts. None: all since the loader was made, or
            since it has found what was left 'auto'.

        Raises
        ------
        ValueError
            The snapshot is another loader's.

        Examples
        --------
        >>> import time
        >>> from gpuloader import DataLoader
        >>> loader = DataLoader(range(600), places="cpu", batch_size=100)
        >>> for batch in loader:
        ...     time.sleep(0.005)  # the step
        >>> loader.explain().bound
        'compute'
        """
        stats, setup = self.stats(), self._setup()
        since = setup.since if since is None else since
        passed = stats if since is None else stats - since
        if passed.steps < 0:
            raise ValueError("since must be an earlier stats() of this loader: it has fewer steps by now")
        return explain(passed, setup)
