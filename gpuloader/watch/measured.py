"""The methods `stats` and `explain`, which every loader has."""

from __future__ import annotations

from gpuloader.watch.advising import Configuration
from gpuloader.watch.explaining import Explanation, explain
from gpuloader.watch.stats import LoaderStats, Meter


class Measured:
    """A loader that measures its speed; the base class of all loaders."""

    _meter: Meter

    def _configuration(self) -> Configuration:
        raise NotImplementedError

    def stats(self) -> LoaderStats:
        """Return where the time went since the loader was created.

        >>> from gpuloader import DataLoader
        >>> DataLoader([1, 2], places="cpu").stats().batches
        0
        """
        return self._meter.snapshot()

    def explain(self, since: LoaderStats | None = None) -> Explanation:
        """Explain what limits the loop over this loader, by how much, and which parameter to change.

        Parameters
        ----------
        since : LoaderStats or None
            An earlier snapshot: only what happened after it counts. None explains everything since the loader
            was created, or since 'auto' options were settled.

        Raises
        ------
        ValueError
            The snapshot belongs to another loader.

        Examples
        --------
        >>> import time
        >>> from gpuloader import DataLoader
        >>> loader = DataLoader(range(3000), places="cpu", batch_size=100)
        >>> for batch in loader:
        ...     time.sleep(0.005)  # the step
        >>> loader.explain().bound
        'compute'
        """
        stats, configuration = self.stats(), self._configuration()
        since = configuration.since if since is None else since
        passed = stats if since is None else stats - since
        if passed.steps < 0:
            raise ValueError(
                f"since must be an earlier stats() of this loader, which has only {stats.steps} steps, but "
                "belongs to another"
            )
        return explain(passed, configuration)
