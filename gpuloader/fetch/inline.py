"""Fetching in the consumer's own thread: nothing is read ahead, and no thread exists."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from gpuloader.collate.stream import StagedBatch
from gpuloader.errors import QueueClosed


class InlineFetch:
    """Reads the next batch when it is asked for.

    Has the two ends of a `ThreadFetch`, so the pipeline does not know the difference.
    """

    def __init__(self, batches: Iterator[StagedBatch]) -> None:
        self._batches = batches

    def get(self) -> StagedBatch:
        """Read and stage the next batch; raise `QueueClosed` at the end, or what the reader raised."""
        try:
            return next(self._batches)
        except StopIteration:
            raise QueueClosed("the reader has no further batch") from None

    def get_nowait(self) -> None:
        """Return None: nothing is ever read ahead."""

    def close(self) -> bool:
        """Close the reader; return True: nothing runs on."""
        if isinstance(self._batches, Generator):
            self._batches.close()
        return True
