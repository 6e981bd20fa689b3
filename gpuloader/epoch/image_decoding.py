"""Decodes the images of staged batches on a device, between the worker and the copy of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloader.batches.staged import StagedBatch, leave_out
from gpuloader.devices.base import Device, DeviceCalls, DeviceImage, DeviceMemory, Stream
from gpuloader.errors import DecodeError, SampleError, describe_error
from gpuloader.sources.images.image import decode_code
from gpuloader.sources.images.regions import Code, read_codes
from gpuloader.staging import HostBytes
from gpuloader.transforms.program import BatchProgram, Decoding

ImageSource = DeviceImage | HostBytes


@dataclass(frozen=True, slots=True)
class Decoded:
    """The images of one field of a batch, in order."""

    decoding: Decoding
    images: list[ImageSource]


class BatchDecoder:
    """Decodes on one device; only the consumer calls it, from one thread at a time."""

    def __init__(self, device: Device, *, urgent: bool) -> None:
        self._device = device
        self._codec = device.codec()
        # A separate stream, on which nothing else waits: the JPEG engine has been seen to write its result
        # before earlier work on the stream had run.
        self._stream = device.stream(urgent=urgent)
        self._event = device.event()

    def decode(self, staged: StagedBatch, program: BatchProgram) -> list[Decoded]:
        """Return the images of each field; the CPU decodes what the device cannot.

        Images that cannot be decoded may be left out of the batch, whose layout then changes. If they must
        not be left out, raises `DecodeError`.
        """
        # All failures are known before the batch's first copy, so samples can still be left out of it.
        views = staged.slot.views(staged.layout)
        decoded: list[Decoded] = []
        images: list[ImageSource] = []
        failures: list[tuple[int, DecodeError]] = []
        bad: dict[int, str] = {}
        try:
            for decoding in program.decodings:
                codes = list(read_codes(views[decoding.codes]))
                images, failures = self._decode(codes)
                if failures and not decoding.skips:
                    position, error = failures[0]
                    error.index, error.field = position, decoding.field
                    number = codes[position].index
                    error.dataset_index = None if number < 0 else number
                    raise error
                decoded.append(Decoded(decoding, images))
                bad.update((position, describe_error(error)) for position, error in failures)
            if bad:
                self._device.synchronize(self._event)
                leave_out(staged, len(images), bad)
        except SampleError as error:
            error.batch = staged.number
            self._device.synchronize(self._event)  # decoding in progress still reads the slot
            # The traceback keeps this frame. With the error in it, both would be garbage that is collected in
            # any order, but images must be freed before the stream that frees them.
            for one in (images, decoded, failures):
                one.clear()
            raise
        for field in decoded if bad else ():
            field.images[:] = [image for number, image in enumerate(field.images) if number not in bad]
        return decoded

    def _decode(self, codes: Sequence[Code]) -> tuple[list[ImageSource], list[tuple[int, DecodeError]]]:
        """Return all images, empty where decoding failed, with the positions and errors of the failures."""
        # A worker sends pixels instead of a file if it knows that the device cannot decode the file.
        encoded = [code for code in codes if code.orientation]
        with self._device.current() as device:
            found = iter(self._codec.decode(encoded, self._stream) if encoded else ())
            device.record(self._event, self._stream)
        images: list[ImageSource] = []
        failures: list[tuple[int, DecodeError]] = []
        for position, code in enumerate(codes):
            image: ImageSource | None = next(found) if code.orientation else HostBytes(code.data)
            if image is None:
                try:
                    image = HostBytes(decode_code(code))
                except DecodeError as error:
                    # The traceback would keep this frame, and with it all images.
                    failures.append((position, error.with_traceback(None)))
                    image = HostBytes(np.zeros(0, np.uint8))
            images.append(image)
        return images, failures

    def place(
        self,
        device: DeviceCalls,
        decoded: Sequence[Decoded],
        staged: StagedBatch,
        program: BatchProgram,
        memory: DeviceMemory,
        stream: Stream,
    ) -> None:
        """Enqueue the copies of a batch on `stream`; the images must be kept until the copies have run."""
        # The files stay in the host slot: a program names the parts of the slot that it reads.
        for begin, end in program.pieces:
            source = HostBytes(staged.slot.bytes[begin:end]) if begin else staged.slot
            device.copy_async(memory, source, end - begin, stream, begin)
        device.wait(stream, self._event)
        views = staged.slot.views(staged.layout)
        for one in decoded:
            field = program.whole.fields[one.decoding.pixels]
            starts = views[one.decoding.codes + 1] * field.shape[1] + field.offset
            for start, image in zip(starts.tolist(), one.images, strict=False):  # there is one split more
                if isinstance(image, HostBytes):
                    device.copy_async(memory, image, image.bytes.size, stream, start)
                else:
                    self._codec.copy(memory, image, stream, start)
