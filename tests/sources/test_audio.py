"""`AudioFolder` and `read_audio`: the stretch that soundfile reads and soxr resamples."""

import io
import pickle
from functools import partial

import numpy as np
import pytest

from gpuloader import (
    AudioFolder,
    DataLoader,
    DecodeError,
    Padding,
    SampleError,
    read_audio,
    sample_rng,
)
from gpuloader.errors import SourceError
from tests.sample_sets import Made, assert_same

soundfile = pytest.importorskip("soundfile")
soxr = pytest.importorskip("soxr")

OWN, LENGTH = 8000, 20_000


def make_audio(seed=0, channels=2):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (LENGTH, channels)).astype(np.float32)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("audio")
    for label, name in enumerate(("bark", "meow")):
        (root / name).mkdir()
        for number in range(3):
            soundfile.write(root / name / f"{number}.flac", make_audio(10 * label + number), OWN)
    return root


@pytest.mark.parametrize("at", [0, 0.5, 1])
@pytest.mark.parametrize("mono", [True, False])
@pytest.mark.parametrize("rate", [OWN, 16_000, 5_000])
def test_a_stretch_is_what_the_libraries_make_of_it(root, at, mono, rate):
    values, _ = soundfile.read(root / "bark" / "0.flac", dtype="float32")
    begin = int(at * (LENGTH - OWN))
    values = values[begin : begin + OWN]
    values = values.mean(1) if mono else values
    expected = values if rate == OWN else soxr.resample(values, OWN, rate)
    got = read_audio(root / "bark" / "0.flac", 1.0, rate=rate, mono=mono, at=at)
    assert (got.dtype, got.shape) == (np.float32, (rate,) if mono else (2, rate))
    np.testing.assert_array_equal(got, expected.T)


def test_a_short_file_is_filled_up_and_a_whole_one_stays(root):
    whole = read_audio(root / "meow" / "1.flac", rate=OWN)
    assert whole.shape == (LENGTH,)
    filled = read_audio(root / "meow" / "1.flac", 4.0, rate=OWN)
    np.testing.assert_array_equal(filled[:LENGTH], whole)
    assert filled.shape == (4 * OWN,)
    assert not filled[LENGTH:].any()


def load(root, epochs=2, at=None, **options):
    loader = DataLoader(
        AudioFolder(root, 1.0, at=at), places="cpu", batch_size=3, shuffle=True, seed=1, **options
    )
    return [[(np.array(audio), np.array(labels)) for audio, labels in loader] for _ in range(epochs)]


def test_a_folder_gives_another_stretch_in_each_epoch_and_the_same_to_all_workers(root):
    expected = load(root)
    first, second = expected
    assert [audio.shape for audio, _ in first] == [(3, 16_000)] * 2
    assert any((a != b).any() for (a, _), (b, _) in zip(first, second, strict=True))
    for way in ({"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}):
        assert_same(load(root, **way), expected)
    dataset = pickle.loads(pickle.dumps(AudioFolder(root, 1.0)))
    assert repr(dataset).startswith("<AudioFolder: 6 audio files of 2 classes")
    assert len(AudioFolder(root, is_valid_file=lambda path: path.endswith("0.flac"))) == 2
    sample = dataset[4]  # outside of a loader, the middle
    np.testing.assert_array_equal(sample.audio, read_audio(root / "meow" / "1.flac", 1.0, at=0.5))
    assert sample.label == 1


@pytest.mark.parametrize("seconds", [0.5, 4.0], ids=["a part", "longer than the file"])
def test_a_position_is_one_random_number_of_its_sample(root, seconds):
    def read(draws, _):
        at = None if draws else sample_rng().random()
        return read_audio(root / "bark" / "0.flac", seconds, at=at), sample_rng().random()

    drawn, given = (
        next(iter(DataLoader(Made(partial(read, draws), 4), places="cpu", batch_size=4, seed=1)))
        for draws in (True, False)
    )
    for one, other in zip(drawn, given, strict=True):
        np.testing.assert_array_equal(one, other)


def test_contents_are_read_like_a_file_and_a_name_may_be_no_text(root, tmp_path):
    path = root / "bark" / "0.flac"
    odd = tmp_path / "\udcff.flac"
    odd.write_bytes(path.read_bytes())
    expected = read_audio(path, 1.0, at=0.3)
    np.testing.assert_array_equal(read_audio(path.read_bytes(), 1.0, at=0.3), expected)
    np.testing.assert_array_equal(read_audio(odd, 1.0, at=0.3), expected)
    with pytest.raises(DecodeError, match=r"cannot decode the audio: Format not recognised\.$"):
        read_audio(b"no audio")


@pytest.mark.parametrize("form", ["WAV", "AIFF", "AU"])
def test_a_file_that_is_cut_off_is_an_error_but_no_stream_of_unknown_length(form):
    file = io.BytesIO()
    soundfile.write(file, make_audio(), OWN, format=form)
    with pytest.raises(DecodeError, match=r"cut off after 5\d{4} of 80\d{3} bytes"):
        read_audio(file.getvalue()[:60_000])
    if form == "WAV":
        data = file.getvalue()
        at = data.index(b"data") + 4
        stream = data[:at] + b"\xff" * 4 + data[at + 4 :]
        np.testing.assert_array_equal(read_audio(stream), read_audio(data))


def test_padding_adds_lengths_and_a_mask_to_the_samples_of_a_folder(root):
    pad = {"audio": Padding(lengths="length", mask="mask")}
    [batch] = DataLoader(AudioFolder(root, rate=OWN), places="cpu", batch_size=6, pad=pad)
    audio, labels, lengths, mask = batch
    assert (audio.shape, mask.shape, lengths.tolist()) == ((6, LENGTH), (6, LENGTH), [LENGTH] * 6)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("data", [b"", b"no audio " * 99, "cut"], ids=str)
def test_files_that_are_no_audio_are_named_or_left_out(root, tmp_path, data):
    good = (root / "meow" / "0.flac").read_bytes()
    (tmp_path / "meow").mkdir()
    (tmp_path / "meow" / "0.flac").write_bytes(good)
    (tmp_path / "meow" / "1.flac").write_bytes(good[: len(good) // 2] if data == "cut" else data)
    with pytest.raises(SampleError, match=r"meow/1\.flac") as caught:
        load(tmp_path, at=1)
    assert isinstance(caught.value.__cause__, DecodeError)
    [[(_, labels)]] = load(tmp_path, on_bad="skip", epochs=1, at=1)
    assert labels.tolist() == [0]


def test_a_missing_file_and_arguments_that_make_no_sense(root, tmp_path):
    with pytest.raises(SourceError, match="cannot read the audio: No such file"):
        read_audio(tmp_path / "none.wav")
    for arguments, problem in (
        ({"seconds": 0}, "seconds must be above 0"),
        ({"rate": 0}, "rate must be"),
        ({"at": -1}, "at must be a number from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=problem):
            AudioFolder(root, **arguments)
    with pytest.raises(FileNotFoundError, match=r"no audio files in the folders"):
        (tmp_path / "empty").mkdir()
        AudioFolder(tmp_path)
