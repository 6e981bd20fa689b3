"""`Video`: a clip of a video file, whose frames PyAV decodes when they are needed; and folders of them."""

from __future__ import annotations

import io
import os
from bisect import bisect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.checks import check_count
from gpuloader.errors import DecodeError, SourceError, describe_error, import_package
from gpuloader.sources.images.decoding import Pixels
from gpuloader.sources.images.folder import Folder, Path, draw_position

VIDEO_EXTENSIONS = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mpeg", ".ogv", ".ts", ".wmv")
"""File extensions that are treated as videos."""

_ROUNDING = 1e-6  # seconds; times in a file's own unit are rounded by this much


class Video:
    """A clip of a video: frames at equal intervals, decoded when the pixels are needed.

    A loader decodes it in the worker, frame by frame, and transforms it with one draw for all frames. NumPy
    treats it as an array of its pixels: ``np.asarray(video)``. Frames are turned as the file says that they
    are shown, such as those of a phone that was held upright.

    Parameters
    ----------
    source : path or bytes
        The file, or its contents, in any format that PyAV's FFmpeg reads.
    frames : int
        The number of frames to take. A shorter video repeats its last frame.
    rate : float or None
        Frames per second to take, each the one that is shown in the middle of its part of the time; None
        takes the video's own, one after the other.
    at : float or None
        Where the clip lies in the video: 0 at its beginning, 1 at its end. None draws it while a loader
        fetches the sample, and takes the middle otherwise.

    Attributes
    ----------
    source, frames, rate, at : object
        What was passed; and what was drawn.
    file : str
        The path; empty if the contents were passed.
    dtype : numpy.dtype
        uint8; the shape is (frames, height, width, 3).

    Raises
    ------
    SourceError
        Raised when the pixels are needed: the file cannot be read.
    DecodeError
        Raised then, too: it is not a video, is damaged, or ends before the clip though the file says that
        it is longer.

    Examples
    --------
    >>> import io, pytest
    >>> av = pytest.importorskip("av")
    >>> file = io.BytesIO()
    >>> with av.open(file, "w", "mp4") as container:
    ...     stream = container.add_stream("mpeg4", 25, width=32, height=16)
    ...     for number in range(20):
    ...         frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), number * 10, np.uint8), "rgb24")
    ...         container.mux(stream.encode(frame))
    ...     container.mux(stream.encode())
    >>> np.asarray(Video(file.getvalue(), frames=4, rate=12.5, at=0))[:, 0, 0, 0].tolist()
    [10, 30, 48, 69]
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self, source: Path | bytes, frames: int = 16, *, rate: float | None = None, at: float | None = 0.5
    ) -> None:
        self.source = source if isinstance(source, bytes) else os.fspath(source)
        self.file = "" if isinstance(self.source, bytes) else self.source
        self.frames = check_count("frames", frames)
        if rate is not None and not 0 < rate < 1e6:
            raise ValueError(f"rate must be frames per second, above 0, got {rate!r}")
        self.rate, self.at = rate, draw_position(at)

    def decode_frames(self) -> Iterator[Pixels]:
        """Yield the frames, uint8 (height, width, 3); a frame that is shown for longer is repeated."""
        av = import_package("av", "decoding videos", "video")
        source: Any = self.source
        try:
            if isinstance(source, bytes):
                source = io.BytesIO(source)
            else:
                open(source, "rb").close()  # noqa: PTH123 - FFmpeg's errors do not tell files from data
                source = os.path.abspath(source)  # noqa: PTH100 - what is before a colon may be a protocol
            with av.open(source) as container:
                if not container.streams.video:
                    raise DecodeError("the file has no video", file=self.file)
                yield from self._take(container, container.streams.video[0], av.video.reformatter)
        except av.FFmpegError as error:
            raise DecodeError(f"cannot decode the video: {describe_error(error)}", file=self.file) from error
        except OSError as error:
            raise SourceError(f"cannot read the video: {error.strerror}", url=self.file) from error

    def _take(self, container: Any, stream: Any, reformatter: Any) -> Iterator[Pixels]:
        # One thread, because the workers use the cores. One converter for all frames: a frame's own
        # `to_ndarray` creates one each time, which takes ten times as long.
        stream.codec_context.thread_count = 1
        convert = partial(reformatter.VideoReformatter().reformat, format="rgb24", threads=1)

        def show(frame: Any) -> Pixels:
            pixels: Pixels = convert(frame).to_ndarray()
            quarters = round(frame.rotation / 90)
            return np.ascontiguousarray(np.rot90(pixels, quarters)) if quarters else pixels

        unit, origin = float(stream.time_base), stream.start_time or 0
        duration = (container.duration or 0) / 1e6 if stream.duration is None else stream.duration * unit
        own_step = 1 / float(stream.average_rate or stream.guessed_rate or 25)
        step = 1 / self.rate if self.rate else own_step
        begin = self.at * max(duration - self.frames * step, 0.0)
        times = [begin + (number + 0.5) * step + _ROUNDING for number in range(self.frames)]
        if begin > 0:
            container.seek(origin + int(times[0] / unit), stream=stream)  # to the key frame before
        done, end, shown, pixels = 0, 0.0, None, None
        for packet in container.demux(stream):
            first, after = ((one or 0) * unit for one in (packet.pts, packet.duration))
            first -= origin * unit
            end = max(end, first + (after or own_step))
            # What no time shows, and is not the last that there is, is decoded only if others need it.
            is_shown = bisect(times, first) < bisect(times, first + after) or first + 2 * after > duration
            stream.codec_context.skip_frame = "DEFAULT" if is_shown or not after else "NONREF"
            for frame in packet.decode():
                # The frame shown at a time is the last one that began before it.
                while shown is not None and (frame.pts - origin) * unit > times[done]:
                    pixels = show(shown) if pixels is None else pixels
                    yield pixels
                    done += 1
                    if done == self.frames:
                        return
                shown, pixels = frame, None
        if shown is None:
            raise DecodeError("the video has no frames", file=self.file)
        # What the whole file lasts may be the time of its sound.
        is_told = stream.duration is not None or len(container.streams) == 1
        if is_told and end + own_step < min(times[-1], duration):
            problem = f"the video is cut off after {end:.2f} of {duration:.2f} seconds"
            raise DecodeError(problem, file=self.file)
        yield from [show(shown) if pixels is None else pixels] * (self.frames - done)

    def decode(self) -> Pixels:
        """Return the pixels, uint8 of shape (frames, height, width, 3)."""
        return np.stack([*self.decode_frames()])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a video has no pixels in memory: they cannot be had without a copy")
        pixels = self.decode()
        return pixels if dtype is None else pixels.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<Video {self.file or 'in memory'}: {self.frames} frames>"


class VideoSample(NamedTuple("_VideoPair", [("video", Any), ("label", Any)])):
    """A clip and its label; a batch has the same two fields.

    Attributes
    ----------
    video, label : object
        The clip and the label.

    Examples
    --------
    >>> video, label = VideoSample("values", 3)
    >>> video, label
    ('values', 3)
    """

    __slots__ = ()

    _names_fields = True  # for the loader


class VideoFolder(Folder):
    """Videos in one folder per class; a sample is the tuple ``(video, label)``.

    Each epoch takes a different clip of each video, drawn from the loader's seed, the epoch and the index.

    Parameters
    ----------
    root : path
        The folder that contains one folder per class. These may have subfolders.
    frames, rate : int, float or None
        As for `Video`.
    at : float or None
        As for `Video`.
    is_valid_file : callable or None
        Returns whether a path is a video; None checks the file's extension.

    Attributes
    ----------
    classes, class_to_idx, samples, targets : list of str, dict, list, list of int
        As for `ImageFolder`.

    Raises
    ------
    FileNotFoundError
        The folder does not exist, has no folders, or a class has no videos.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as root:
    ...     pathlib.Path(root, "run").mkdir()
    ...     pathlib.Path(root, "run", "0.mp4").touch()
    ...     VideoFolder(root, frames=8, at=0.5)[0]
    VideoSample(video=<Video ...0.mp4: 8 frames>, label=0)
    """

    _kind = "video"
    _sample = VideoSample
    _extensions = VIDEO_EXTENSIONS

    def __init__(
        self,
        root: Path,
        frames: int = 16,
        *,
        rate: float | None = None,
        at: float | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
    ) -> None:
        Video(b"", frames, rate=rate, at=at)  # checks the arguments
        self.frames, self.rate, self.at = frames, rate, at
        super().__init__(root, is_valid_file=is_valid_file)

    def _load(self, path: str) -> Video:
        return Video(path, self.frames, rate=self.rate, at=self.at)
