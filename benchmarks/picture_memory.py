"""What worker threads take beside the slots while they decode photographs for a GPU.

python -m benchmarks.picture_memory prints the megabytes that a process of its own took.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path

from benchmarks.measure import Result, spread

HEIGHT, WIDTH, THREADS, PICTURES, BATCH = 1500, 2000, 8, 64, 16
DECODED = HEIGHT * WIDTH * 3 / 1e6
"""Megabytes of a decoded picture."""

_INTERVAL = 0.002  # seconds between two looks at the memory


def measure() -> Result:
    """Measure in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", __name__ if __name__ != "__main__" else "benchmarks.picture_memory"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {
        f"{THREADS} decoded pictures": spread([THREADS * DECODED]),
        "gpuloader, to a GPU, beside its slots": spread([json.loads(done.stdout)]),
    }
    title = f"memory of {THREADS} threads that decode {WIDTH} x {HEIGHT}, in batches of {BATCH}"
    return Result(title, "MB", next(iter(rows)), "no more than the pictures", rows)


def take() -> float:
    """Return the most megabytes of private memory that three epochs added to this process.

    Slots for a GPU are shared memory, which is not counted.
    """
    import numpy as np
    from PIL import Image

    from benchmarks.gpu.counted_cuda import counted_cuda
    from benchmarks.picture_loaders import load

    rough = np.random.default_rng(0).integers(0, 256, (150, 200, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(rough).resize((WIDTH, HEIGHT)).save(file, "jpeg", quality=90)
    files = [(file.getvalue(), number) for number in range(PICTURES)]
    with counted_cuda():
        for _ in load(files[:1], "0", 224, "gpu:0", workers=0):  # what is imported at the first batch
            pass
        before, seen, done = count_private(), [0], threading.Event()

        def watch() -> None:
            while not done.wait(_INTERVAL):
                seen.append(count_private())

        watcher = threading.Thread(target=watch)
        watcher.start()
        loader = load(files, "0", 224, "gpu:0", workers=THREADS)
        for _ in range(3):
            for batch in loader:
                del batch
        done.set()
        watcher.join()
    return (max(seen) - before) / 1e6


def count_private() -> int:
    """Return the bytes of this process's private memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


if __name__ == "__main__":
    print(json.dumps(take()))
