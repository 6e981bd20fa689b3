"""What every loader tells of its speed: `stats`, `explain` and `watch`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from gpuloader.checks import check_seconds
from gpuloader.errors import BadValue
from gpuloader.system.threads import LONGEST_WAIT
from gpuloader.watch.meter import Meter

if TYPE_CHECKING:
    from gpuloader.watch.explaining import Explanation
    from gpuloader.watch.stats import LoaderStats


class Measured:
    """A loader that measures its speed; the base class of all loaders."""

    _meter: Meter
    _epochs: Any  # its `configuration` holds the options that an explanation depends on

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
        >>> loader = DataLoader(range(1000), places="cpu", batch_size=100)
        >>> for batch in loader:
        ...     time.sleep(0.05)  # the step
        >>> loader.explain().bound
        'compute'
        """
        from gpuloader.watch.explaining import explain  # late: few programs ask

        stats, configuration = self.stats(), self._epochs.configuration
        since = configuration.since if since is None else since
        passed = stats if since is None else stats - since
        if passed.steps < 0:
            raise ValueError(
                f"since must be an earlier stats() of this loader, which has only {stats.steps} steps, but "
                "belongs to another"
            )
        return explain(passed, configuration)

    @contextmanager
    def watch(self, seconds: float = 1.0, file: TextIO | None = None) -> Iterator[None]:
        """Show rates, waiting, slots and workers of this loader while the ``with`` block runs.

        A terminal shows a single line that is updated; other files get a line per update. Both end with a
        total.

        Parameters
        ----------
        seconds : float
            Time between two updates; the rates are those of that time.
        file : file object or None
            Where to write; None writes to ``sys.stderr``.

        Raises
        ------
        BadValue
            `seconds` is 0, negative or not a number.

        Examples
        --------
        >>> import io
        >>> from gpuloader import DataLoader
        >>> loader, shown = DataLoader(range(100), places="cpu", batch_size=10), io.StringIO()
        >>> with loader.watch(file=shown):
        ...     for batch in loader: pass
        >>> print(shown.getvalue().partition(", ")[0])
        10 steps in all
        """
        from gpuloader.watch.explaining import format_bytes, name_readers

        if not check_seconds("seconds", seconds):
            raise BadValue("seconds must be more than 0, got 0")
        out = sys.stderr if file is None else file
        # `\r` and "erase to the end of the line", which all current terminals understand.
        start, end = ("\r\x1b[K", "") if out.isatty() else ("", "\n")
        stopped = threading.Event()

        def tell(before: LoaderStats, begun: float, end: str, in_all: str = "") -> tuple[LoaderStats, float]:
            stats, now = self.stats(), perf_counter()
            part, took = stats - before, now - begun
            # A wait counts when it ends, and may have begun before this interval.
            waiting = min((part.startup + part.wait) / took, 1)
            out.write(
                f"{start}{in_all}{part.steps / took:,.0f} steps/s, {format_bytes(part.nbytes / took)}/s, "
                f"{waiting:.0%} waiting, {stats.slots_in_use} of {stats.slots} slots in use, "
                f"{name_readers(self._epochs.configuration)}{end}"
            )
            out.flush()
            return stats, now

        def show() -> None:
            before = first
            while not stopped.wait(min(seconds, LONGEST_WAIT)):
                before = tell(*before, end)

        first = self.stats(), perf_counter()
        thread = threading.Thread(target=show, name="gpuloader-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            tell(*first, "\n", f"{self.stats().steps - first[0].steps:,} steps in all, ")
