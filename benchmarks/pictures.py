"""Pictures: JPEG files in memory and on disk, to batches on a CPU, and the way to a GPU without its part.

python benchmarks/pictures.py [--peer NAME ...] [--repeats N] [--output FILE.json]

Random windows are resized, mirrored and normalized, in batches of 64, with two workers: 1,024 photographs of
500 x 375 to 224 x 224, and 4,096 thumbnails of 100 x 75 to 64 x 64. All ways take turns of one epoch, each
library in its own process. Files are in the temporary folder; for a cold turn, they are dropped from the page
cache first. On the way to a GPU, workers decode regions into page-locked slots, and calls of CUDA return at
once: it takes CuPy, and no GPU. Install the extra ``images-fast`` to measure it; the ways without it do as
if it were not there.

Processor time is that of all cores, which other programs disturb less than the time that elapses. The memory
is what a process takes beyond its slots while it decodes photographs of 12 megapixels with 8 threads.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import picture_loaders, picture_memory
from benchmarks.hosts import Host, TurnFailed
from benchmarks.measure import Result, describe_machine, make_parser, run_script, spread
from benchmarks.peers.samples import Pictures, photos
from benchmarks.picture_loaders import DISK, ELAPSED, MEMORY
from benchmarks.run import render

MODULE = picture_loaders.__name__
COUNT, SIDE = 4096, 64
"""Of thumbnails: how many, and the size of the result."""

Runs = dict[tuple[str, str], list[float]]
"""Measurements by the title of a table and the name of a row."""


def main() -> None:
    """Measure and print tables."""
    parser = make_parser(__doc__)
    peers = picture_loaders.PEERS
    parser.add_argument("--peer", nargs="*", default=[], choices=peers, help="libraries to measure beside")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each way, after a warm-up turn")
    run_script(parser, measure, render)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    runs: Runs = {}
    with tempfile.TemporaryDirectory(prefix="gpuloader-pictures-") as folder:
        for kind, side, files in (("photographs", Pictures.SIZE, None), ("thumbnails", SIDE, COUNT)):
            root = Path(folder, kind)
            write_files(root, files)
            _take_turns(kind, root, side, options, runs)
    results = [picture_memory.measure(), *_tabulate(runs)]
    cases = [result.to_json() for result in results]
    return {"machine": describe_machine(), "repeats": options.repeats, "cases": cases}


def _take_turns(kind: str, root: Path, side: int, options: argparse.Namespace, runs: Runs) -> None:
    arguments = str(root), str(side)
    with contextlib.ExitStack() as stack:

        def start(function: str, *first: str) -> Host:
            return stack.enter_context(contextlib.closing(Host(MODULE, function, *first, *arguments)))

        openings = [picture_loaders.open_host, picture_loaders.open_plain_host]
        if importlib.util.find_spec("cupy"):
            openings += [picture_loaders.open_road, picture_loaders.open_plain_road]
        hosts = [("gpuloader, ", start(opening.__name__)) for opening in openings]
        for name in options.peer:
            hosts.append((name, start(picture_loaders.open_peer.__name__, name)))
        ways = [(name, host, way) for name, host in hosts for way in _names(host) if ELAPSED not in way]
        for number in range(options.repeats + 1):
            for name, host, way in ways:
                _take_turn(kind, root, name, host, way, runs, measured=number > 0)
        for _, host in hosts:
            host.finish()


def _names(host: Host) -> list[str]:
    try:
        return host.ways()
    except TurnFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return []


def _take_turn(kind: str, root: Path, name: str, host: Host, way: str, runs: Runs, *, measured: bool) -> None:
    if way.endswith(MEMORY):
        states = {"in memory": False}
    else:
        states = {"files in the page cache": False, "files on disk": True}
    for state, is_cold in states.items():
        if is_cold:
            drop_from_cache(root)
        try:
            took = host.turn(way), host.turn(way + ELAPSED)
        except TurnFailed as failure:
            print(f"{name}{way} failed: {failure}", file=sys.stderr)
            return
        row = f"{name}{way.removesuffix(MEMORY).removesuffix(DISK)}"
        for unit, one in zip(("processor time", "time elapsed"), took, strict=True):
            if measured:
                runs.setdefault((f"{kind}, {state}, {unit}", row), []).append(one)


def _tabulate(runs: Runs) -> Iterator[Result]:
    for title in dict.fromkeys(title for title, _ in runs):
        rows = {row: spread(found) for (of, row), found in runs.items() if of == title}
        floor = next((row for row in rows if row.startswith("dali")), None)
        yield Result(
            title, "µs per picture", floor, "0.87 of DALI's, to a GPU 0.45; scaled 0.67 and 0.33", rows
        )


def write_files(root: Path, thumbnails: int | None) -> None:
    """Write photographs, or so many thumbnails of them, into folders of 64 classes."""
    pictures = photos(1024)
    files = pictures.files if thumbnails is None else _shrink(pictures.files, thumbnails)
    for number, file in enumerate(files):
        path = root / f"class{number % 64:02}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)
    os.sync()  # what is not written yet would stay in the page cache


def _shrink(files: list[bytes], count: int) -> Iterator[bytes]:
    from PIL import Image

    for number in range(count):
        file = io.BytesIO()
        with Image.open(io.BytesIO(files[number % len(files)])) as image:
            image.draft("RGB", (125, 94))
            image.resize((100, 75)).save(file, "jpeg", quality=90)
        yield file.getvalue()


def drop_from_cache(root: Path) -> None:
    """Drop the files below a folder from the page cache; a hint that Linux follows for files not in use."""
    for path in root.rglob("*.jpg"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    main()
