"""The benchmark's cases: eleven datasets and the batches to load them in."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers import samples


@dataclass(frozen=True, slots=True)
class Case:
    """One dataset, which `make` returns given `length`, and how to read it.

    `length` counts samples per epoch, or batches if `batch_size` is None and the dataset yields them ready.
    `needs` is the import name of a package that the dataset itself needs; `note` a remark without which the
    figures could not be compared; `goal` what gpuloader should reach.
    """

    name: str
    title: str
    make: samples.Maker
    length: int
    batch_size: int | None
    shuffle: bool = False
    needs: str | None = None
    note: str = ""
    goal: str = "none"

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
_OWN_DECODER = (
    "tf.data decodes and resizes with its own code, bilinear and without antialiasing. All others call "
    "Pillow, bicubic and antialiased; gpuloader's own Resize makes the same pixels, by libjpeg-turbo and "
    "compiled code."
)
_OWN_WINDOWS = (
    "Each library decodes and resizes with the code that its users would choose; only gpuloader's and "
    "Pillow's pixels are the same. tf.data does not antialias."
)

_ALL = (
    Case(
        "arrays",
        "Arrays in memory, 100 × 784 float32, shuffled",
        samples.flat_images,
        50_000,
        100,
        True,
        goal="6 times torch's TensorDataset, 3 times its __getitems__, 0.85 of the floor's rate",
    ),
    Case(
        "lists",
        "Lists of 784 floats to arrays, batches of 100, shuffled",
        samples.digit_lists,
        4_000,
        100,
        True,
        goal="0.95 of the floor's rate without workers, 1.7 times torch's with 2 workers each",
    ),
    Case(
        "images",
        "Images, 64 × 3 × 224 × 224 uint8",
        samples.pictures,
        4_096,
        64,
        goal="10 times torch, 20 times Paddle, with 2 workers each",
    ),
    Case(
        "jpeg",
        "JPEG files, 32 decoded and resized",
        samples.jpegs,
        512,
        32,
        False,
        "PIL",
        _OWN_DECODER,
        goal="1.1 times torch; its own Resize 1.2 times tf.data",
    ),
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
    Case(
        "waits",
        "Samples that wait 2 ms, batches of 32",
        samples.Waits,
        640,
        32,
        goal="16 threads: 7 times torch's 2 workers",
    ),
    Case("small", "Small batches, 8 × 32 float32", samples.Rows, 8_000, 8, goal="at most 100 with 1 worker"),
    Case(
        "stream",
        "Stream of samples, 100 × 784 float32",
        samples.row_stream,
        5_000,
        100,
        goal="0.7 of the bare loop's rate",
    ),
    Case(
        "stream_lists",
        "Stream of lists of 784 floats, batches of 100",
        samples.list_stream,
        2_000,
        100,
        goal="0.7 of the bare loop's rate",
    ),
    Case(
        "ready",
        "Ready batches, 32 × 784 float32",
        samples.ready_rows,
        3_000,
        None,
        note=_PASSED_ON,
        goal="at most 40 asynchronous, 25 synchronous",
    ),
    Case(
        "ready_images",
        "Ready batches, 64 × 3 × 224 × 224 uint8",
        samples.ready_images,
        60,
        None,
        note=_PASSED_ON,
        goal="0.85 of the bare loop's bandwidth",
    ),
)

CASES = {case.name: case for case in _ALL}
