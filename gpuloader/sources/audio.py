"""`AudioFolder` and `read_audio`: clips of audio files, which libsndfile decodes and soxr resamples."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.errors import DecodeError, SourceError, import_package
from gpuloader.sources.images.folder import Folder, Path, draw_position

AUDIO_EXTENSIONS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aif", ".aiff", ".au")
"""File extensions that are treated as audio."""

_CUT = re.compile(r"^\s*(?:data|Data Size|SSND)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
"""What libsndfile notes of a file that is shorter than its header says, which it reads as far as it goes."""

_UNKNOWN = 0x7FFFF000
"""From this size on, which programs write that do not know how long a stream will be, it says nothing."""


def read_audio(
    file: Path | bytes,
    seconds: float | None = None,
    *,
    rate: int = 16_000,
    mono: bool = True,
    at: float | None = None,
) -> NDArray[np.float32]:
    """Return a clip of an audio file, resampled.

    Parameters
    ----------
    file : path or bytes
        The file, or its contents, in any format that libsndfile reads: WAV, FLAC, MP3, Ogg and others.
    seconds : float or None
        The length; a shorter file is filled up with silence. None takes the whole file.
    rate, mono : int, bool
        Samples per second of the result, and whether to average the channels.
    at : float or None
        Where the clip lies in the file: 0 at its beginning, 1 at its end. None draws the position while a
        loader fetches the sample, and uses the middle otherwise.

    Returns
    -------
    numpy.ndarray
        float32 from -1 to 1, of shape (samples,), or (channels, samples) without `mono`.

    Raises
    ------
    SourceError
        The file cannot be read.
    DecodeError
        The file is not audio, or is damaged.

    Examples
    --------
    >>> import tempfile, pytest
    >>> soundfile, _ = pytest.importorskip("soundfile"), pytest.importorskip("soxr")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(f"{folder}/a.wav", np.full((8000, 2), 0.5), 8000)
    ...     read_audio(f"{folder}/a.wav", 0.5, at=0).shape
    (8000,)
    """
    position = _check(seconds, rate, at)
    soundfile = import_package("soundfile", "decoding audio", "audio")
    path = "" if isinstance(file, bytes) else os.fspath(file)
    try:
        source: Any = io.BytesIO(file) if isinstance(file, bytes) else os.fsencode(path)
        if path:
            open(path, "rb").close()  # noqa: PTH123 - libsndfile's errors do not tell files from data
        with soundfile.SoundFile(source) as opened:
            cut = _CUT.search(opened.extra_info)
            if cut and int(cut[2]) < int(cut[1]) < _UNKNOWN:
                raise DecodeError(f"the audio is cut off after {cut[2]} of {cut[1]} bytes", file=path)
            own, count = opened.samplerate, opened.frames
            wanted = count if seconds is None else round(seconds * own)
            spare = max(count - wanted, 0)
            if spare:
                opened.seek(int(position * spare))
            values = opened.read(wanted, "float32", always_2d=True)
    except OSError as error:
        raise SourceError(f"cannot read the audio: {error.strerror}", url=path) from error
    except soundfile.LibsndfileError as error:
        raise DecodeError(f"cannot decode the audio: {error.error_string}", file=path) from error
    if len(values) < min(wanted, count):
        raise DecodeError(f"the audio ends after {len(values)} of {min(wanted, count)} samples", file=path)
    values = values.mean(1, keepdims=True) if mono else values
    if own != rate:
        values = import_package("soxr", "resampling audio", "audio").resample(values, own, rate)
    if seconds is not None:
        length = round(seconds * rate)
        values = np.pad(values[:length], ((0, max(length - len(values), 0)), (0, 0)))
    return np.ascontiguousarray(values[:, 0] if mono else values.T)


def _check(seconds: float | None, rate: int, at: float | None) -> float:
    """Return where the clip lies, drawn once even if the file is too short to choose."""
    check_count("rate", rate)
    if seconds is not None and not 0 < seconds < np.inf:
        raise ValueError(f"seconds must be above 0, got {seconds!r}")
    return draw_position(at)


class AudioSample(NamedTuple("_AudioPair", [("audio", Any), ("label", Any)])):
    """A clip of audio and its label; a batch has the same two fields.

    Attributes
    ----------
    audio, label : object
        The clip and the label.

    Examples
    --------
    >>> audio, label = AudioSample("values", 3)
    >>> audio, label
    ('values', 3)
    """

    __slots__ = ()

    _names_fields = True  # for the loader


class AudioFolder(Folder):
    """Audio files in one folder per class; a sample is the tuple ``(audio, label)``.

    Each epoch takes a different clip of each file, drawn from the loader's seed, the epoch and the index.

    Parameters
    ----------
    root : path
        The folder that contains one folder per class. These may have subfolders.
    seconds, rate, mono, at : float or None, int, bool, float or None
        As for `read_audio`.
    is_valid_file : callable or None
        Returns whether a path is audio; None looks at the file's extension.

    Attributes
    ----------
    classes, class_to_idx, samples, targets : list of str, dict, list, list of int
        As for `ImageFolder`.

    Raises
    ------
    FileNotFoundError
        The folder does not exist, has no folders, or a class has no audio files.

    Examples
    --------
    >>> import pathlib, tempfile, pytest
    >>> from gpuloader import DataLoader
    >>> soundfile = pytest.importorskip("soundfile")
    >>> with tempfile.TemporaryDirectory() as root:
    ...     pathlib.Path(root, "bark").mkdir()
    ...     soundfile.write(f"{root}/bark/0.wav", np.zeros(32000), 16000)
    ...     audio, label = next(iter(DataLoader(AudioFolder(root, 1.0), places="cpu")))
    >>> audio.shape, audio.dtype, label
    ((1, 16000), dtype('float32'), array([0]))
    """

    holds_pictures = False

    _kind = "audio file"
    _sample = AudioSample
    _extensions = AUDIO_EXTENSIONS

    def __init__(
        self,
        root: Path,
        seconds: float | None = None,
        *,
        rate: int = 16_000,
        mono: bool = True,
        at: float | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
    ) -> None:
        _check(seconds, rate, at)
        self.seconds, self.rate, self.mono, self.at = seconds, rate, mono, at
        super().__init__(root, is_valid_file=is_valid_file)

    def _load(self, path: str) -> NDArray[np.float32]:
        return read_audio(path, self.seconds, rate=self.rate, mono=self.mono, at=self.at)
