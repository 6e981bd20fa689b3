"""A stand-in for nvidia.nvimgcodec 0.9, which decodes with Pillow into memory that plays the GPU's.

It has the parts of the interface that the package uses, with the real names of parameters, the real results
for what it cannot decode, and what is dangerous about the real one: memory of images that are gone is used
again at once, through the stream that the image was decoded on; the JPEG engine writes when it is called,
other decoders when their stream gets there; and the outermost pixels of a region are wrong.
"""

import io
from enum import Enum
from types import ModuleType, SimpleNamespace

import numpy as np
import PIL.Image
import PIL.ImageOps

PADDING = 5  # bytes behind each row, as a pitch may have


class BackendKind(Enum):
    CPU_ONLY, GPU_ONLY, HYBRID_CPU_GPU, HW_GPU_ONLY = range(1, 5)


class ImageBufferKind(Enum):
    STRIDED_DEVICE, STRIDED_HOST = 1, 2


class Region:
    def __init__(self, start_y, start_x, end_y, end_x):
        self.start, self.end = (start_y, start_x), (end_y, end_x)


class CodeStream:
    def __init__(self, array, region=None):
        assert array.dtype == np.uint8
        assert array.ndim == 1
        self.array, self.region = array, region

    def _open(self):
        try:
            image = PIL.Image.open(io.BytesIO(self.array.tobytes()))
        except OSError:
            raise RuntimeError("Failed to get image info") from None
        return image

    @property
    def height(self):
        return self._open().height

    @property
    def width(self):
        return self._open().width

    def get_sub_code_stream(self, image_idx=0, region=None):
        for start, end in zip(region.start, region.end, strict=True):
            if not start < end:
                raise RuntimeError("Invalid dimension")
        return CodeStream(self.array, region)


class DecodeParams:
    def __init__(self, apply_exif_orientation=True, color_spec=None, allow_any_depth=False):
        assert color_spec == "SRGB"
        self.apply_exif_orientation = apply_exif_orientation


class Image:
    buffer_kind = ImageBufferKind.STRIDED_DEVICE

    def __init__(self, shape, pool, is_gone=lambda: False):
        self.shape, self._pool, self._is_gone = shape, pool, is_gone
        self.pitch = shape[1] * shape[2] + PADDING
        needed = shape[0] * self.pitch
        found = next((number for number, one in enumerate(pool) if one.size >= needed), None)
        self.memory = np.full(needed, 0xEE, np.uint8) if found is None else pool.pop(found)

    def __del__(self):
        self._pool.append(self.memory)
        assert not self._is_gone(), "the image has outlived the stream on which its memory is freed"

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "strides": (self.pitch, self.shape[2], 1),
            "typestr": "|u1",
            "data": (self.memory.__array_interface__["data"][0], False),
            "version": 3,
        }


def cut(pixels, region):
    """Return a region; as before nvJPEG 13.2, its edges are wrong unless they are those of the picture."""
    (top, left), (bottom, right) = region.start, region.end
    part = pixels[top:bottom, left:right].copy()
    part[: top > 0] ^= 255
    part[len(part) - (bottom < pixels.shape[0]) :] ^= 255
    part[:, : left > 0] ^= 255
    part[:, part.shape[1] - (right < pixels.shape[1]) :] ^= 255
    return part


def make_module(runtime=None, *, late=False, refuses=lambda data: False):
    """Return the module; `late` decoders write when their stream gets there, and some data they refuse."""
    module = ModuleType("nvidia.nvimgcodec")
    pool = []
    module.calls = calls = []

    def allocate():
        if runtime is not None:
            runtime.check("malloc")

    class Decoder:
        def __init__(self, device_id=-1, max_num_cpu_threads=0, backends=None, options=""):
            allocate()
            module.made = SimpleNamespace(
                device_id=device_id, threads=max_num_cpu_threads, backends=backends, options=options
            )

        def decode(self, srcs, *, images=None, params=None, cuda_stream=0):
            allocate()
            calls.append((len(srcs), params.apply_exif_orientation, cuda_stream))
            module.regions = [source.region for source in srcs]
            return [self._decode(source, params, cuda_stream) for source in srcs]

        def _decode(self, source, params, stream):
            try:
                image = source._open()
                if image.format != "JPEG" or refuses(source.array.tobytes()):
                    return None
                turned = PIL.ImageOps.exif_transpose(image) if params.apply_exif_orientation else image
                pixels = np.asarray(turned.convert("RGB"))
            except (OSError, RuntimeError):
                return None
            if source.region is not None:
                pixels = cut(pixels, source.region)
            result = Image(pixels.shape, pool, lambda: runtime is not None and stream in runtime.destroyed)
            memory, pitch = result.memory, result.pitch  # not the image, which the stream does not keep

            def write():
                rows = memory[: len(pixels) * pitch].reshape(len(pixels), pitch)
                rows[:, : pitch - PADDING] = pixels.reshape(len(pixels), -1)

            if late and runtime is not None:
                before = source.array.tobytes()

                def write_late():
                    assert source.array.tobytes() == before, "the slot was written again too early"
                    write()

                runtime.queue(stream).append((None, write_late))
            else:
                write()
            return result

    module.__version__ = "0.9.0"
    module.ColorSpec = SimpleNamespace(SRGB="SRGB")
    module.Backend = lambda kind: kind
    module.BackendKind, module.ImageBufferKind, module.Region = BackendKind, ImageBufferKind, Region
    module.CodeStream, module.DecodeParams, module.Decoder = CodeStream, DecodeParams, Decoder
    return module
