"""Record a trace of a loader and draw it as docs/images/trace.png.

    python docs/tools/trace_picture.py [trace.json]

Two worker processes take about 7 ms each to make a batch of images. A simulated device
runs in real time: it copies a batch in 1.5 ms and computes on it for 4 ms. The consumer
waits for the loss in each step.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gpuloader
import numpy as np
from gpuloader import DataLoader, Dataset
from gpuloader.demo.timeline import draw_trace
from gpuloader.testing import CustomPlace, SimulatedDevice

PICTURE = Path(__file__).parents[1] / "images" / "trace.png"
COPY, STEP, SAMPLE, BATCH = 0.0015, 0.004, 0.0006, 10


class WallClockDevice(SimulatedDevice):
    """A simulated device that runs in real time, so that waiting for it takes time."""

    _begun: float | None = None

    @property
    def now(self) -> float:
        """Seconds since the device was created."""
        return 0.0 if self._begun is None else time.perf_counter() - self._begun

    @now.setter
    def now(self, when: float) -> None:
        if self._begun is None:
            self._begun = time.perf_counter()
        while (left := when - self.now) > 0:
            time.sleep(left)

    def record(self, event: Any, stream: Any) -> None:
        """Record an event. On an idle stream its time is now, not the last work's end."""
        self.launch(lambda: None, [], stream)
        super().record(event, stream)


class Pictures(Dataset):
    """Images that each take as long to make as decoding a small JPEG."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[Any, int]:
        ready = time.perf_counter() + SAMPLE
        picture = np.full((3, 64, 64), index % 256, np.uint8)
        with suppress(ValueError):  # already late
            time.sleep(ready - time.perf_counter())
        return picture, index % 10


def main() -> None:
    """Record a trace and draw it."""
    device = WallClockDevice("simulated:0", copy_time=lambda _: COPY)
    loader = DataLoader(
        Pictures(), places=CustomPlace(device), batch_size=BATCH, num_workers=2
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(sys.argv[1]) if sys.argv[1:] else Path(folder) / "trace.json"
        with gpuloader.trace(file):
            for images, _ in loader:
                images.launch_read(duration=STEP)  # the step's kernel
                device.finish(device.consumer_stream())  # its loss, on the host
        draw_trace(file, PICTURE, steps=8)


if __name__ == "__main__":
    main()
