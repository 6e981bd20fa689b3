"""Pictures: the same JPEG files in memory and on disk, and the host's part of the way to a GPU.

python benchmarks/pictures.py [--peer NAME ...] [--repeats N]

Figures are pictures per second: 1,024 files of 500 x 375, random windows resized to 224 x 224, mirrored and
normalized, in batches of 64, with two workers. All ways take turns, each library in its own process. Files
are on the disk of the temporary folder; for a cold turn, they are dropped from the page cache first. On the
way to a GPU, workers decode regions into page-locked slots, and calls of CUDA return at once: it takes CuPy,
and no GPU. "Decoded there" is decode="device" with a decoder that takes no time.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.script import make_parser
from gpuloader.bench.cases import CASES
from gpuloader.bench.consumer import turn
from gpuloader.bench.hosts import Host, open_host
from gpuloader.bench.measure import Candidate
from gpuloader.bench.peers import PEERS
from gpuloader.bench.running import take_turns
from gpuloader.bench.samples import Pictures
from gpuloader.bench.sides import Here, Side
from gpuloader.devices.base import DevicePicture

CASE = CASES["pictures"]
MODULE = "benchmarks.pictures"
WAYS = {"exact": False, "scaled": True}


def open_memory() -> Here:
    """Return the side of gpuloader on a CPU place, with files in memory and on disk."""
    return Here(lambda: _on_host(CASE.make(CASE.length)))


def open_road() -> Here:
    """Return the side of gpuloader on the way to a GPU whose calls do nothing."""
    from benchmarks.gpu.counted_cuda import counted_cuda

    stack = contextlib.ExitStack()
    stack.enter_context(counted_cuda())
    atexit.register(stack.close)
    return Here(lambda: _to_device(CASE.make(CASE.length)))


def _on_host(pictures: Pictures) -> dict[str, Candidate]:
    import gpuloader

    folder = write_files(pictures)
    names = gpuloader.ImageFolder(folder)
    files = [(pictures.file(index), index) for index in range(len(pictures))]
    made: dict[str, Candidate] = {}
    for way, scaled in WAYS.items():
        made[f"{way}, in memory"] = partial(turn, _load(files, "0", scaled, "cpu"), _first)
        loader = _load(names, "image", scaled, "cpu")
        made[f"{way}, files in the page cache"] = partial(turn, loader, _first)
        made[f"{way}, files on disk"] = partial(_turn_cold, loader, folder)
    return made


def _to_device(pictures: Pictures) -> dict[str, Candidate]:
    files = [(pictures.file(index), index) for index in range(len(pictures))]
    loaders = {f"{way}, road to a GPU": _load(files, "0", scaled, "gpu:0") for way, scaled in WAYS.items()}
    with mock.patch("gpuloader.devices.cuda.open_codec", return_value=_IdleCodec()):
        loaders["decoded there, road to a GPU"] = _load(files, "0", False, "gpu:0", decode="device")
    return {name: partial(turn, loader, lambda batch: batch) for name, loader in loaders.items()}


class _IdleCodec:
    """Decodes as fast as a GPU that takes no time."""

    def decode(self, codes: Sequence[Any], stream: Any) -> list[DevicePicture | None]:  # noqa: ARG002
        return [DevicePicture(0, 0, 0, 0, None) for _ in codes]

    def copy(self, *_: Any) -> None:
        pass


def _load(dataset: Any, field: str, scaled: bool, places: str, **options: Any) -> Any:
    from gpuloader import DataLoader
    from gpuloader.transforms import Normalize, RandomFlip, RandomResizedCrop

    steps = [
        RandomResizedCrop(field, Pictures.SIZE, scaled=scaled),
        RandomFlip(field),
        Normalize(field, Pictures.MEAN, Pictures.STD, scale=1 / 255),
    ]
    return DataLoader(
        dataset,
        places=places,
        batch_size=CASE.size,
        shuffle=True,
        num_workers=2,
        worker_type="thread",
        persistent_workers=True,
        transforms=steps,
        **options,
    )


def _first(batch: Any) -> object:
    return batch[0].item(0)


def write_files(pictures: Pictures) -> Path:
    """Write the files into folders of 64 classes, which end with this process; return their root."""
    folder = tempfile.TemporaryDirectory(prefix="gpuloader-pictures-")
    atexit.register(folder.cleanup)
    root = Path(folder.name)
    for index in range(len(pictures)):
        path = root / f"class{index % 64:02}" / f"{index:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pictures.file(index))
    os.sync()  # what is not written yet would stay in the page cache
    return root


def drop_from_cache(root: Path) -> None:
    """Drop the files below a folder from the page cache; a hint that Linux follows for files not in use."""
    for path in root.rglob("*.jpg"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _turn_cold(loader: Any, root: Path) -> float:
    drop_from_cache(root)
    return turn(loader, _first, least=0)  # one epoch: in the second, the files would be in memory


def main() -> None:
    """Measure and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--peer", nargs="*", default=[], choices=PEERS, help="libraries to measure beside")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each way, after a warm-up turn")
    options = parser.parse_args()
    opened: dict[str, Callable[[], Side]] = {"gpuloader": lambda: Host(MODULE, open_memory.__name__)}
    if importlib.util.find_spec("cupy"):
        opened["gpuloader "] = lambda: Host(MODULE, open_road.__name__)
    for name in options.peer:
        opened[name] = partial(open_host, PEERS[name], replace(CASE))
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(contextlib.closing(make())) for name, make in opened.items()}
        rows, _ = take_turns(sides, options.repeats)
        for side in sides.values():
            side.finish()
    for row in rows:
        rate = row.error if row.spread is None else f"{CASE.size / row.spread.median * 1e6:8,.0f}"
        print(f"{row.label:50} {rate}")


if __name__ == "__main__":
    main()
