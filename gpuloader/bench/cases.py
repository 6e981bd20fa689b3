"""What is loaded: ten datasets, and in what batches."""

from __future__ import annotations

from dataclasses import dataclass

from gpuloader.bench import samples


@dataclass(frozen=True, slots=True)
class Case:
    """One dataset and how it is to be read.

    Attributes
    ----------
    name : str
        What the command line calls it.
    title : str
        What tables and plots call it.
    make : callable
        Makes the dataset, of `length` samples.
    length : int
        Samples in an epoch; of streams of ready batches, batches.
    batch_size : int or None
        Samples in a batch; None where batches are ready.
    shuffle : bool
        Whether samples come in an order drawn for each epoch.
    needs : str or None
        A package that the dataset itself needs, as it is imported.
    note : str
        What one has to know to compare its figures.
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
        """The batch size of a case that has one."""
        assert self.batch_size is not None
        return self.batch_size

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        return -(-self.length // (self.batch_size or 1))


_PASSED_ON = (
    "We copy each batch once, so that what you hold stays as it is. Whoever takes less than the bare loop, "
    "which copies too, hands on the reader's own memory."
)
_OWN_DECODER = "tf.data decodes and resizes by code of its own; all others call Pillow."

_ALL = (
    Case("arrays", "Arrays in memory, 100 × 784 float32, shuffled", samples.flat_images, 50_000, 100, True),
    Case("lists", "Lists of 784 floats made arrays, by 100, shuffled", samples.digit_lists, 4_000, 100, True),
    Case("images", "Images, 64 × 3 × 224 × 224 uint8", samples.pictures, 4_096, 64),
    Case("jpeg", "JPEG files, 32 decoded and resized", samples.jpegs, 512, 32, False, "PIL", _OWN_DECODER),
    Case("waits", "Samples that wait 2 ms, by 32", samples.Waits, 640, 32),
    Case("small", "Small batches, 8 × 32 float32", samples.Rows, 8_000, 8),
    Case("stream", "Stream of samples, 100 × 784 float32", samples.row_stream, 5_000, 100),
    Case("stream_lists", "Stream of lists of 784 floats, by 100", samples.list_stream, 2_000, 100),
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
