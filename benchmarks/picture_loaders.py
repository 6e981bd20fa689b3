"""Loaders of the same picture files: those of gpuloader, and of other libraries as their users write them."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.hosts import Here
from benchmarks.measure import Candidate, Endless
from benchmarks.peers import find_peer
from benchmarks.peers.cases import CASES
from benchmarks.peers.samples import Pictures
from gpuloader.devices.base import DeviceImage

CASE = CASES["pictures"]
WORKERS = 2
MEMORY, DISK, ELAPSED = ", in memory", ", files", ", elapsed"
"""The endings of the names of ways: where the encoded pictures are; and the time elapsed in the last turn."""


def open_host(root: str, side: str, name: str = "exact") -> Here:
    """Return the side of gpuloader on a CPU place, given the folder and the size of the result."""
    return Here(lambda: _open_ours(root, int(side), "cpu", name, lambda batch: batch[0].item(0)))


def open_plain_host(root: str, side: str) -> Here:
    """Return the side of gpuloader on a CPU place, as it is without the extra ``images-fast``."""
    do_without_extra()
    return open_host(root, side, "exact, without images-fast")


def open_plain_road(root: str, side: str) -> Here:
    """Return the side of gpuloader on the way to a GPU, as it is without the extra ``images-fast``."""
    do_without_extra()
    return open_road(root, side, "to a GPU, without images-fast")


def do_without_extra() -> None:
    """Have this process resize by Pillow, and decode whole pictures."""
    from gpuloader.sources.images import resampling, turbojpeg

    # No mock of a function, which would take long for each picture.
    never = resampling.LateResizer(load_after=sys.maxsize)
    mock.patch.object(resampling, "LATE_RESIZER", never).start()
    mock.patch.object(turbojpeg, "load_turbojpeg", _find_nothing).start()


def _find_nothing() -> None:
    pass


def open_road(root: str, side: str, name: str = "to a GPU") -> Here:
    """Return the side of gpuloader on the way to a GPU whose calls do nothing."""
    from benchmarks.gpu.counted_cuda import counted_cuda

    stack = contextlib.ExitStack()
    stack.enter_context(counted_cuda())
    atexit.register(stack.close)
    ours = partial(_open_ours, root, int(side), "gpu:0", name, lambda batch: batch)
    return Here(lambda: ours() | (_open_decoding(root, int(side)) if name == "to a GPU" else {}))


def _open_decoding(root: str, side: int) -> dict[str, Candidate]:
    """Return the way to a GPU that decodes and takes no time for it."""
    from gpuloader import ImageFolder

    files, name, options = read_files(root), "to a GPU that decodes", {"decode": "device"}
    with mock.patch("gpuloader.devices.cuda_device.open_codec", return_value=_IdleCodec()):
        loaders = {
            f"{name}{MEMORY}": load(files, "0", side, "gpu:0", **options),
            f"{name}{DISK}": load(ImageFolder(root), "image", side, "gpu:0", **options),
        }
    return _candidates(loaders, lambda batch: batch)


class _IdleCodec:
    """Decodes nothing, in no time."""

    def decode(self, codes: Sequence[Any], stream: Any) -> list[DeviceImage | None]:  # noqa: ARG002
        return [DeviceImage(0, 0, 0, 0, None) for _ in codes]

    def copy(self, *_: Any) -> None:
        pass


def _open_ours(
    root: str, side: int, places: str, name: str, touch: Callable[[Any], object]
) -> dict[str, Candidate]:
    from gpuloader import ImageFolder

    files = read_files(root)
    loaders = {
        f"{name}{MEMORY}": load(files, "0", side, places),
        f"{name}, scaled{MEMORY}": load(files, "0", side, places, scaled=True),
        f"{name}{DISK}": load(ImageFolder(root), "image", side, places),
    }
    return _candidates(loaders, touch)


def open_peer(name: str, root: str, side: str) -> Here:
    """Return the side of another library: loaders of its own of the pictures in memory, and of the files."""
    opened: dict[str, Callable[[str, int], dict[str, Iterable[Any]]]] = {
        "dali": _open_dali,
        "torch": _open_torch,
        "tensorflow": _open_tensorflow,
    }
    touch = find_peer(name).load().touch
    return Here(lambda: _candidates(opened[name](root, int(side)), touch))


PEERS = ("dali", "torch", "tensorflow")


def _candidates(loaders: dict[str, Iterable[Any]], touch: Callable[[Any], object]) -> dict[str, Candidate]:
    turns = {name: _Turns(loader, touch) for name, loader in loaders.items()}
    computed = {name: one.compute for name, one in turns.items()}
    return computed | {f"{name}{ELAPSED}": partial(getattr, one, "elapsed") for name, one in turns.items()}


class _Turns:
    """Epochs of a loader.

    Attributes
    ----------
    elapsed : float
        The microseconds per picture that the last epoch took.
    """

    def __init__(self, loader: Iterable[Any], touch: Callable[[Any], object]) -> None:
        self._loader = loader
        self._touch = touch
        self.elapsed = 0.0

    def compute(self) -> float:
        """Read an epoch; return the microseconds per picture that this process and its children computed."""
        if isinstance(self._loader, Endless):
            self._loader.drop_what_was_made_ahead()
        start, before, pictures = time.perf_counter(), processor_time(), 0
        for batch in self._loader:
            self._touch(batch)
            pictures += CASE.size
            del batch
        self.elapsed = (time.perf_counter() - start) / pictures * 1e6
        return (processor_time() - before) / pictures * 1e6


def processor_time() -> float:
    """Return the seconds that this process and its living and ended descendants have computed."""
    ended = os.times()
    ticks = sum(map(_count_ticks, list_descendants(os.getpid())))
    return (
        time.process_time() + ended.children_user + ended.children_system + ticks / os.sysconf("SC_CLK_TCK")
    )


def list_descendants(process: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that they have started."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from list_descendants(child)


def _count_ticks(process: int) -> int:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13]))
    return 0


def read_files(root: str) -> list[tuple[bytes, int]]:
    """Return the files below a folder, each with its number."""
    return [(path.read_bytes(), number) for number, path in enumerate(list_files(root))]


def list_files(root: str) -> list[Path]:
    """Return the paths of the pictures below a folder."""
    return sorted(Path(root).rglob("*.jpg"))


def load(
    dataset: Any,
    field: str,
    side: int,
    places: str,
    *,
    scaled: bool = False,
    workers: int = WORKERS,
    **options: Any,
) -> Any:
    """Return a loader of gpuloader for random windows of pictures, mirrored and normalized."""
    from gpuloader import DataLoader
    from gpuloader.transforms import Normalize, RandomFlip, RandomResizedCrop

    steps = [
        RandomResizedCrop(field, side, scaled=scaled),
        RandomFlip(field),
        Normalize(field, Pictures.MEAN, Pictures.STD, scale=1 / 255),
    ]
    return DataLoader(
        dataset,
        places=places,
        batch_size=CASE.size,
        shuffle=True,
        num_workers=workers,
        worker_type="thread",
        persistent_workers=True,
        transforms=steps,
        **options,
    )


def _open_dali(root: str, side: int) -> dict[str, Iterable[Any]]:
    from nvidia.dali import fn, pipeline_def

    from benchmarks.peers import dali

    paths = list_files(root)
    epoch = len(paths) // CASE.size
    pictures = Pictures([path.read_bytes() for path in paths], len(paths), side)

    @pipeline_def(batch_size=CASE.size, num_threads=WORKERS, device_id=None, seed=0)
    def read() -> Any:
        files, labels = fn.readers.file(file_root=root, random_shuffle=True, initial_fill=len(paths))
        return dali.augment(files, side), labels

    return {
        MEMORY: dali.keep_running(dali.make_pipeline(CASE, pictures, WORKERS), epoch),
        DISK: dali.keep_running(dali.build(read()), epoch),
    }


class _InFiles(Pictures):
    """Pictures that are read from files for each sample."""

    def __init__(self, paths: list[Path], side: int) -> None:
        super().__init__([], len(paths), side)
        self._paths = paths

    def file(self, index: int) -> bytes:
        """Return a sample's encoded picture."""
        return self._paths[index].read_bytes()


def _open_torch(root: str, side: int) -> dict[str, Iterable[Any]]:
    from torch.utils.data import DataLoader

    paths = list_files(root)
    pictures = Pictures([path.read_bytes() for path in paths], len(paths), side)
    options = {"shuffle": True, "num_workers": WORKERS, "persistent_workers": True}
    return {
        f", Pillow{MEMORY}": DataLoader(pictures, CASE.size, **options),
        f", Pillow{DISK}": DataLoader(_InFiles(paths, side), CASE.size, **options),
    }


def _open_tensorflow(root: str, side: int) -> dict[str, Iterable[Any]]:
    import tensorflow as tf

    from benchmarks.peers.tensorflow import augment

    paths = list_files(root)
    labels = list(range(len(paths)))

    def make(values: list[Any], read: Callable[[Any], Any]) -> Any:
        chosen = tf.data.Dataset.from_tensor_slices((values, labels)).shuffle(len(values))
        made = chosen.map(
            lambda value, label: augment(read(value), label, side), num_parallel_calls=tf.data.AUTOTUNE
        )
        return made.batch(CASE.size).prefetch(tf.data.AUTOTUNE)

    return {
        MEMORY: make([path.read_bytes() for path in paths], lambda file: file),
        DISK: make(list(map(str, paths)), tf.io.read_file),
    }
