"""The protocol between the pipeline and whatever fills the slots."""

from __future__ import annotations

from typing import Protocol

from gpuloader.collate.stream import StagedBatch


class Fetch(Protocol):
    """The consumer's end of a fetcher."""

    def get(self) -> StagedBatch:
        """Wait for the next staged batch and return it; raise `QueueClosed` at the end of the epoch."""

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch, or None if `get` would wait."""

    def close(self) -> bool:
        """Stop fetching and return every slot; return False if a thread or process is still running."""
