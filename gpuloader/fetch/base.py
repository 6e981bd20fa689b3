"""Who fills the slots: the consumer itself, or a thread beside it."""

from __future__ import annotations

from typing import Protocol

from gpuloader.collate.stream import StagedBatch


class Fetch(Protocol):
    """The consumer's end of whoever fetches."""

    def get(self) -> StagedBatch:
        """Return the next staged batch, waiting for it; raise `QueueClosed` at the end of the epoch."""

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch as `get` does, but None at once where `get` would wait."""

    def close(self) -> bool:
        """Stop fetching and give back every slot; return whether nothing runs on."""
