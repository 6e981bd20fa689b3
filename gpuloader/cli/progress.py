"""Progress bars of training runs: steps, their rate, and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

_SECONDS = 0.2
"""Seconds between two updates of a bar. No thread refreshes the bars: it would disturb the timing."""


class Bar:
    """The progress bar of one run; call it after each step.

    Parameters
    ----------
    progress : Progress
        The display that shows the bar.
    name : str
        The run's name.
    total : int
        The run's number of steps.
    """

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._total = total
        self._task = progress.add_task(name, total=total, start=False, rate="", loss="")
        self._begun = self._shown = 0.0

    def __call__(self, steps: int, loss: Any) -> None:
        """Update the bar if the last update is long enough ago."""
        now = monotonic()
        if not self._begun:
            self._begun = self._shown = now
            self._progress.start_task(self._task)
        elif steps == self._total or now - self._shown > _SECONDS:
            self._shown = now
            # Reading a loss makes the host wait for the device: another reason to update seldom.
            rate, shown = (steps - 1) / (now - self._begun), float(loss)
            self._progress.update(
                self._task, completed=steps, rate=f"{rate:,.0f}/s", loss=f"loss {shown:.3f}"
            )
            self._progress.refresh()


@contextmanager
def show_bars(console: Console) -> Iterator[Progress | None]:
    """Show bars while the block runs; yield None if the output is not a terminal."""
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", justify="right", style="cyan"),
        TextColumn("{task.fields[loss]}", justify="right"),
    )
    with Progress(*columns, console=console, auto_refresh=False, expand=True) as progress:
        yield progress
