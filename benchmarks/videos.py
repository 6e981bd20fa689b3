"""Clips of videos next to torchcodec's own decoder: processor time per frame, on one core.

python benchmarks/videos.py [--workers N] [--repeats N] [--output FILE.json]

Videos of 320 x 240 at 30 frames per second, H.264 with a key frame every second, are made in a temporary
folder. Each epoch takes one clip of 16 frames at 15 frames per second of each, at random, to windows of
112 x 112, mirrored at random and normalized, in batches of 8, without workers. The other way decodes by
torchcodec, with one thread, within PyTorch's DataLoader, and transforms tensors by torchvision's v2.
It needs torch, torchvision, torchcodec and the extra `video`. The ways take turns in one process, with one
thread. With `--workers`, both have so many worker processes, which stay, and the time is that of the clock.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Result, compare_epochs, describe_machine, make_parser, run_script
from benchmarks.run import render

VIDEOS, NAMES, FRAMES, RATE, BATCH, SIZE = 16, 4, 16, 15, 8, 112


def make_videos(root: Path) -> None:
    """Write videos of waves that move, each under several names, for longer epochs."""
    import av

    down, across = np.mgrid[:240, :320]
    for number in range(VIDEOS):
        path = root / f"class{number % 2}" / f"{number}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", 30, width=320, height=240, options={"g": "30"})
            stream.pix_fmt = "yuv420p"
            for time in range(150):
                waves = np.sin(down / 17 + time / 5) + np.sin(across / (11 + number) - time / 7)
                pixels = (128 + 60 * waves).astype(np.uint8)[..., None].repeat(3, 2)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
            container.mux(stream.encode())
        for name in range(1, NAMES):
            os.link(path, path.with_stem(f"{number}-{name}"))


def make_own(root: Path, workers: dict[str, Any]) -> Any:
    """Return gpuloader's way."""
    from gpuloader import DataLoader, VideoFolder
    from gpuloader.transforms import Normalize, RandomFlip, RandomResizedCrop

    steps = [RandomResizedCrop("video", SIZE), RandomFlip("video"), Normalize("video", 127.5, 127.5)]
    dataset = VideoFolder(root, FRAMES, rate=RATE)
    shared = {"places": "cpu", "output": "torch", "batch_size": BATCH, "seed": 0}
    return DataLoader(dataset, transforms=steps, **shared, **workers)


def make_theirs(root: Path, workers: dict[str, Any]) -> Any:
    """Return torchcodec's way."""
    import torch
    from torch.utils.data import DataLoader, Dataset
    from torchcodec.decoders import VideoDecoder
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    files = sorted(root.glob("*/*.mp4"))

    class Clips(Dataset):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> Any:
            decoder = VideoDecoder(str(files[index]), num_ffmpeg_threads=1, seek_mode="approximate")
            begin = float(torch.rand(())) * (decoder.metadata.duration_seconds - FRAMES / RATE)
            times = [begin + (number + 0.5) / RATE for number in range(FRAMES)]
            return transform(decoder.get_frames_played_at(times).data), index % 2

    return DataLoader(Clips(), batch_size=BATCH, **workers)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    import torch
    import torchcodec

    torch.set_num_threads(1)
    count = options.workers
    workers = {"num_workers": count, "persistent_workers": True} if count else {}
    with tempfile.TemporaryDirectory() as folder:
        make_videos(Path(folder))
        own, theirs = make_own(Path(folder), workers), make_theirs(Path(folder), workers)
        ways = {f"torchcodec {torchcodec.__version__.split('+')[0]}": theirs, "gpuloader": own}
        clock = perf_counter if count else process_time
        rows = compare_epochs(ways, VIDEOS * NAMES * FRAMES, options, clock)
    title = f"Clips of {FRAMES} frames, 320 x 240 to {SIZE} x {SIZE}"
    unit = f"µs per frame, {count} workers" if count else "µs of one core per frame"
    result = Result(title, unit, next(iter(rows)), "at most 0.91 of torchcodec's", rows)
    return {"machine": describe_machine(), "repeats": options.repeats, "cases": [result.to_json()]}


def main() -> None:
    """Measure and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="turns of each way, after a warm-up turn")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of each way")
    parser.add_argument("--warm", type=int, default=5, help="epochs before, in which resizing is compiled")
    run_script(parser, measure, render)


if __name__ == "__main__":
    main()
