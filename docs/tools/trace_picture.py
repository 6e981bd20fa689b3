"""Record a trace of a loader and draw it as docs/images/trace.png.

    python docs/tools/trace_picture.py

Two worker processes take about 7 ms each to make a batch of images. A simulated device
runs in real time: it copies a batch in 1.5 ms and computes on it for 4 ms. The consumer
waits for the loss in each step.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gpuloader
import numpy as np
from gpuloader import DataLoader, Dataset
from gpuloader.demo.timeline import add_legend, choose_window, draw_run
from gpuloader.testing import CustomPlace, SimulatedDevice
from matplotlib.figure import Figure

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
    with gpuloader.trace() as spans:
        for images, _ in loader:
            images.launch_read(duration=STEP)  # the step's kernel
            device.finish(device.consumer_stream())  # its loss, on the host
    start, end = choose_window(spans, steps=8)
    rows = {one.thread for one in spans}
    figure = Figure(figsize=(11, 1.1 + 0.45 * len(rows)), dpi=120, layout="constrained")
    draw_run(figure.subplots(), spans, start, end)
    add_legend(figure, (one for one in spans if one.end > start and one.start < end))
    figure.savefig(PICTURE)


if __name__ == "__main__":
    main()
