"""nvImageCodec: decodes JPEG files on a GPU, with nvJPEG. Only this module imports it.

It decodes only into its own memory, so images are then copied into the batch, within the GPU.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuloader.devices.base import DeviceImage
from gpuloader.errors import LoaderError, MissingPackage, describe_error, install_command
from gpuloader.sources.images.regions import Code
from gpuloader.system.driver import Relaxed
from gpuloader.system.platforms import usable_cores

# Chroma is interpolated as libjpeg-turbo does on the CPU. Before nvJPEG 13.2, this makes the outermost pixels
# of a region wrong, so regions are decoded with a margin.
OPTIONS = ":fancy_upsampling=1 :enable_roi_fancy_upsampling=1"
_MARGIN = 2  # pixels
_ANY_MEMORY = 4  # cudaMemcpyDefault
_UPRIGHT = 1
_CUDA_13 = 13_000
# A gray JPEG file of 8 x 8 pixels. Without nvJPEG, the decoder can be created but decodes nothing, so only a
# trial shows whether it works.
_TRIAL = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|JwjV01yid4h#wq4h;?x5fBp?C>j_R78o%jB^@X_Gd(;xGdMRuNL)@pL{~*OI8bd-S6^ahXlFi6ad~iL"
    "cwA*?WB<Sa3kU!R00;pA5di<h02BZL00000000000000000000|HJ?k5CH%H0000000000000000095m00;pA002J#KmXY"
)


def open_codec(index: int, runtime: Any) -> JpegCodec:
    """Return a GPU's decoder after a successful trial on a file; `runtime` is ``cupy.cuda.runtime``.

    Raises
    ------
    MissingPackage
        nvImageCodec is not installed.
    LoaderError
        It cannot decode on this GPU.
    """
    extra = "nvimgcodec-cu12" if runtime.runtimeGetVersion() < _CUDA_13 else "nvimgcodec-cu13"
    try:
        from nvidia import nvimgcodec
    except ImportError as error:
        raise MissingPackage(
            f"decode='device' needs nvImageCodec on gpu:{index}, which is not importable ({error}): "
            f"{install_command(extra)}, or pass decode='image'",
            name="nvidia-nvimgcodec",
        ) from None
    # Backends on the CPU are left out: they would silently decode in the thread that asks for batches.
    kind = nvimgcodec.BackendKind
    backends = map(nvimgcodec.Backend, (kind.HW_GPU_ONLY, kind.GPU_ONLY, kind.HYBRID_CPU_GPU))
    try:
        codec = JpegCodec(nvimgcodec, index, backends, runtime)
        if codec.decode([Code(np.frombuffer(_TRIAL, np.uint8), (0, 0, 8, 8), _UPRIGHT)], None) != [None]:
            return codec
        problem = "a trial failed"
    except (RuntimeError, LoaderError) as error:
        problem = describe_error(error)
    raise LoaderError(
        f"gpu:{index}: nvImageCodec {nvimgcodec.__version__} cannot decode JPEG files: {problem}; nvJPEG "
        f"or a newer driver may be missing: {install_command(extra)}, or pass decode='image'"
    )


class JpegCodec:
    """nvImageCodec's decoder; any thread may call it, but only one decodes at a time."""

    def __init__(self, module: Any, index: int, backends: Iterable[Any], runtime: Any) -> None:
        self.name = f"gpu:{index}"
        self._module = module
        self._runtime = runtime
        # nvImageCodec leaves one core to the thread that calls it.
        threads = max(usable_cores() - 1, 1)
        self._decoder = module.Decoder(
            device_id=index, max_num_cpu_threads=threads, backends=list(backends), options=OPTIONS
        )
        self._params = [
            module.DecodeParams(apply_exif_orientation=turns, color_spec=module.ColorSpec.SRGB)
            for turns in (False, True)
        ]
        self._lock = threading.Lock()

    def decode(self, codes: Sequence[Code], stream: Any) -> list[DeviceImage | None]:
        """Decode as `Codec.decode` does; None means the device's default stream."""
        # The GPU's JPEG engine has been seen to write its result when called, before earlier work on the same
        # stream has run (nvJPEG 12.3 to 13.2 on an H100). So the stream has no other work, and memory is not
        # returned before the host knows that nothing reads it any more.
        found: list[DeviceImage | None] = [None] * len(codes)
        # The decoder allocates, and waits for events, which would end a capture of another thread.
        with self._lock, Relaxed():
            opened = [(number, *self._open(code)) for number, code in enumerate(codes)]
            # Whether to apply the orientation is a parameter of the call, so each answer takes a call of its
            # own.
            for turns in (False, True):
                chosen = [one for one in opened if (codes[one[0]].orientation > _UPRIGHT) == turns]
                sources = [one for one in chosen if one[1] is not None]
                images = self._decode([source for _, source, _ in sources], turns=turns, stream=stream)
                for (number, _, frame), image in zip(sources, images, strict=True):
                    if image is not None:
                        found[number] = self._take(image, codes[number], frame, stream)
        return found

    def _open(self, code: Code) -> tuple[Any, tuple[int, int, int, int]]:
        """Return an image's source (None without a header) and which part of the image it decodes."""
        top, left, bottom, right = code.part
        try:
            source = self._module.CodeStream(code.data)
            size = source.height, source.width
            tall, wide = size[::-1] if code.orientation > 4 else size
            if bottom > tall or right > wide:
                return None, code.part  # its size differs from what the CPU's decoder found
            start, end = (max(top - _MARGIN, 0), max(left - _MARGIN, 0)), (bottom + _MARGIN, right + _MARGIN)
            frame = *start, min(end[0], tall), min(end[1], wide)
            if frame != (0, 0, tall, wide):
                source = source.get_sub_code_stream(region=self._module.Region(*frame))
        except RuntimeError:
            return None, code.part
        return source, frame

    def _decode(self, sources: list[Any], *, turns: bool, stream: Any) -> list[Any]:
        if not sources:
            return []
        handle = 0 if stream is None else stream.ptr
        try:
            images: list[Any] = self._decoder.decode(sources, params=self._params[turns], cuda_stream=handle)
        except RuntimeError as error:
            raise LoaderError(f"{self.name}: nvImageCodec failed: {describe_error(error)}") from error
        return images

    def _take(
        self, image: Any, code: Code, frame: tuple[int, int, int, int], stream: Any
    ) -> DeviceImage | None:
        """Return the region that a code asks for, within the part of the image that was decoded."""
        height, width, channels = code.shape
        first, near, last, far = frame
        if tuple(image.shape) != (last - first, far - near, channels):
            return None
        on_device = image.buffer_kind == self._module.ImageBufferKind.STRIDED_DEVICE
        interface = image.__cuda_array_interface__ if on_device else image.__array_interface__
        pitch = interface["strides"][0] if interface.get("strides") else (far - near) * channels
        address = interface["data"][0] + (code.part[0] - first) * pitch + (code.part[1] - near) * channels
        # The image frees its memory through the stream, so the stream must be freed after it. The objects of
        # a tuple are freed from last to first.
        return DeviceImage(address, pitch, height, width * channels, (stream, image))

    def copy(self, target: Any, image: DeviceImage, stream: Any, offset: int) -> None:
        """Issue one `cudaMemcpy2DAsync`."""
        there, width = target.address + offset, image.width
        source = image.address, image.pitch
        self._runtime.memcpy2DAsync(there, width, *source, width, image.height, _ANY_MEMORY, stream.ptr)
