"""The benchmark's cases: eleven datasets and the batches to load them in."""

from __future__ import annotations

from dataclasses import dataclass

from gpuloader.bench import samples


@dataclass(frozen=True, slots=True)
class Case:
    """One dataset and how to read it.

    Attributes
    ----------
    name : str
        The case's name on the command line.
    title : str
        The case's title in tables and plots.
    make : callable
        A function that makes the dataset, given `length`.
    length : int
        Samples per epoch; batches per epoch for streams of ready batches.
    batch_size : int or None
        Samples per batch; None if the dataset yields ready batches.
    shuffle : bool
        Whether to draw a new order for each epoch.
    needs : str or None
        The import name of a package that the dataset itself needs.
    note : str
        A remark needed to compare the case's figures.
    """

    name: str
    title: str
    make: samples.Maker
    length: int
    batch_size: int | None
    shuffle: bool = False
    needs: str | None = None
    note: str = ""

    @property
    def size(self) -> int:
        """Samples per batch, for a case that has a batch size."""
        assert self.batch_size is not None
        return self.batch_size

    @property
    def batches(self) -> int:
        """Batches per epoch."""
        return -(-self.length // (self.batch_size or 1))


_PASSED_ON = (
    "gpuloader copies each batch once, so that a batch you hold never changes. The bare loop copies too. "
    "A loader faster than the bare loop passes on the reader's own memory."
)
_OWN_DECODER = "tf.data decodes and resizes with its own code; all others call Pillow."
_OWN_WINDOWS = (
    "Each library decodes and resizes with the code that its users would choose; only gpuloader's and "
    "Pillow's pixels are the same. tf.data does not antialias."
)

_ALL = (
    Case("arrays", "Arrays in memory, 100 × 784 float32, shuffled", samples.flat_images, 50_000, 100, True),
    Case(
        "lists",
        "Lists of 784 floats to arrays, batches of 100, shuffled",
        samples.digit_lists,
        4_000,
        100,
        True,
    ),
    Case("images", "Images, 64 × 3 × 224 × 224 uint8", samples.pictures, 4_096, 64),
    Case("jpeg", "JPEG files, 32 decoded and resized", samples.jpegs, 512, 32, False, "PIL", _OWN_DECODER),
    Case(
        "pictures",
        "JPEG files of 500 × 375 to random windows, 64 × 3 × 224 × 224 float32",
        samples.photos,
        1_024,
        64,
        True,
        "PIL",
        _OWN_WINDOWS,
    ),
    Case("waits", "Samples that wait 2 ms, batches of 32", samples.Waits, 640, 32),
    Case("small", "Small batches, 8 × 32 float32", samples.Rows, 8_000, 8),
    Case("stream", "Stream of samples, 100 × 784 float32", samples.row_stream, 5_000, 100),
    Case("stream_lists", "Stream of lists of 784 floats, batches of 100", samples.list_stream, 2_000, 100),
    Case("ready", "Ready batches, 32 × 784 float32", samples.ready_rows, 3_000, None, note=_PASSED_ON),
    Case(
        "ready_images",
        "Ready batches, 64 × 3 × 224 × 224 uint8",
        samples.ready_images,
        60,
        None,
        note=_PASSED_ON,
    ),
)

CASES = {case.name: case for case in _ALL}
