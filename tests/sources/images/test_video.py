"""`Video` and `VideoFolder`: the frames that are shown then, by the judgment of a plain loop."""

import pickle
import struct

import numpy as np
import pytest

import gpuloader.transforms as t
from gpuloader import (
    DataLoader,
    DecodeError,
    ParquetDataset,
    SampleError,
    TarDataset,
    Video,
    VideoFolder,
    write_shards,
)
from gpuloader.errors import SourceError
from gpuloader.testing import simulated_places
from tests.sample_sets import Made, assert_same

av = pytest.importorskip("av")
pytest.importorskip("PIL")

COUNT, RATE = 60, 25


def write_video(path, count=COUNT, shift=0, codec="mpeg4", gop=12, options=None):
    """Write a video whose frames are gray, each brighter than the one before."""
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, RATE, width=48, height=32, options={"g": str(gop)})
        stream.pix_fmt = "yuv420p"
        for number in range(count):
            pixels = np.full((32, 48, 3), (number * 4 + shift) % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())


def decode_all(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    for label, name in enumerate(("jump", "run")):
        (root / name).mkdir()
        for number in range(3):
            write_video(root / name / f"{number}.mp4", shift=10 * label + number)
    return root


@pytest.fixture(scope="module")
def frames(root):
    return np.stack(decode_all(root / "jump" / "0.mp4"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"frames": 4, "at": 0}, [0, 1, 2, 3]),
        ({"frames": 4, "at": 1}, [56, 57, 58, 59]),
        ({"frames": 3, "at": 0.5}, [29, 30, 31]),
        ({"frames": 3, "rate": 5, "at": 0}, [2, 7, 12]),
        ({"frames": 4, "rate": 50, "at": 0}, [0, 0, 1, 1]),
        ({"frames": 60, "at": 0.3}, [*range(60)]),
        ({"frames": 62, "at": 1}, [*range(60), 59, 59]),
        ({"frames": 2, "rate": 0.5, "at": 1}, [25, 59]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_a_clip_has_the_frames_that_are_shown_then(root, frames, arguments, expected, kind):
    path = root / "jump" / "0.mp4"
    video = Video(path if kind == "path" else path.read_bytes(), **arguments)
    assert video.dtype == np.uint8
    np.testing.assert_array_equal(np.asarray(video), frames[expected])


@pytest.mark.parametrize("form", ["mkv", "avi", "webm"])
def test_other_formats_are_sought_in_as_well(tmp_path, form):
    codec = "libvpx" if form == "webm" else "mpeg4"
    write_video(tmp_path / f"0.{form}", codec=codec)
    whole = decode_all(tmp_path / f"0.{form}")
    for at in (0, 0.37, 1):
        begin = round(at * (COUNT - 5))
        got = Video(tmp_path / f"0.{form}", 5, at=at).decode()
        near = [np.array_equal(got, whole[first : first + 5]) for first in range(begin - 1, begin + 2)]
        assert any(near)


def load(root, *transforms, at=None, epochs=2, **options):
    options = {"places": "cpu", "batch_size": 3, "shuffle": True, "seed": 1, **options}
    loader = DataLoader(VideoFolder(root, 4, at=at), transforms=transforms, **options)
    return [[(np.array(clips), np.array(labels)) for clips, labels in loader] for _ in range(epochs)]


STEPS = t.RandomResizedCrop("video", 24), t.RandomFlip("video"), t.Normalize("video", 127.5, 127.5)


def test_a_folder_gives_another_clip_in_each_epoch_and_the_same_to_all_workers(root):
    expected = load(root, *STEPS)
    first, second = expected
    assert [clips.shape for clips, _ in first] == [(3, 4, 3, 24, 24)] * 2
    assert sorted(np.concatenate([labels for _, labels in first])) == [0, 0, 0, 1, 1, 1]
    assert any((a != b).any() for (a, _), (b, _) in zip(first, second, strict=True))
    ways = {"num_workers": 2}, {"num_workers": 2, "worker_type": "process"}, {"places": simulated_places(1)}
    for way in ways:
        assert_same(load(root, *STEPS, **way), expected)


def test_without_transforms_a_batch_has_the_pixels(root, frames):
    [[(clips, _), _]] = load(root, at=0, epochs=1)
    assert clips.shape == (3, 4, 32, 48, 3)
    found = VideoFolder(root, 4)
    assert found.classes == ["jump", "run"]
    assert repr(found).startswith("<VideoFolder: 6 videos of 2 classes")
    assert len(VideoFolder(root, 4, is_valid_file=lambda path: path.endswith("0.mp4"))) == 2
    video, label = pickle.loads(pickle.dumps(found))[0]  # outside of a loader, the middle
    assert (video.at, video.frames, label) == (0.5, 4, 0)
    np.testing.assert_array_equal(video, frames[28:32])


@pytest.mark.parametrize("way", ["empty", "cut", "text", "silent"])
def test_files_that_are_no_videos_are_named_or_left_out(root, tmp_path, way):
    good = (root / "run" / "0.mp4").read_bytes()
    data = {"empty": b"", "cut": good[: len(good) // 2], "text": b"no video " * 99, "silent": None}[way]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "0.mp4").write_bytes(good)
    bad = tmp_path / "run" / "1.mp4"
    if data is None:
        with av.open(str(bad), "w") as container:
            stream = container.add_stream("aac", 16000)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.sample_rate = 16000
            container.mux(stream.encode(frame))
            container.mux(stream.encode())
    else:
        bad.write_bytes(data)
    with pytest.raises(DecodeError, match=r"run/1\.mp4") as caught:
        load(tmp_path)
    assert (caught.value.field, caught.value.dataset_index) == ("video", 1)
    [[(_, labels)]] = load(tmp_path, on_bad="skip", epochs=1)
    assert labels.tolist() == [0]


@pytest.mark.parametrize("form", ["mp4", "mkv", "webm"])
def test_a_video_that_is_cut_off_is_no_short_video(tmp_path, form):
    path = tmp_path / f"0.{form}"
    codec, options = ("libvpx", {}) if form == "webm" else ("mpeg4", {"movflags": "faststart"})
    write_video(path, codec=codec, options=options if form == "mp4" else {})
    data = path.read_bytes()
    assert Video(data, COUNT + 9, at=0).decode().shape[0] == COUNT + 9
    for part in (0.5, 0.7):
        cut = data[: int(len(data) * part)]
        np.testing.assert_array_equal(Video(cut, 4, at=0), Video(data, 4, at=0))
        with pytest.raises(DecodeError, match=r"cut off after \d\.\d+ of 2\.4|has no frames"):
            Video(cut, 4, at=1).decode()


@pytest.mark.parametrize(("quarters", "turn"), [(1, (0, 1, -1, 0)), (2, (-1, 0, 0, -1)), (3, (0, -1, 1, 0))])
def test_frames_are_turned_as_the_file_says(tmp_path, quarters, turn):
    path = tmp_path / "0.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", RATE, width=48, height=32)
        pixels = np.zeros((32, 48, 3), np.uint8)
        pixels[:8, :16] = 255
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())
    upright = Video(path, 1).decode()
    data = path.read_bytes()
    at = data.index(b"tkhd") + 44  # the matrix by which a player turns the track clockwise
    a, b, c, d = (number << 16 for number in turn)
    matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    turned = Video(data[:at] + matrix + data[at + len(matrix) :], 1)
    np.testing.assert_array_equal(turned, np.rot90(upright, -quarters, (1, 2)))


def test_an_odd_name_is_a_path_and_a_lost_file_is_named_with_its_sample(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b\udcff.mp4").write_bytes((root / "run" / "0.mp4").read_bytes())
    np.testing.assert_array_equal(Video("a:b\udcff.mp4", 2), Video(root / "run" / "0.mp4", 2))
    (tmp_path / "run").mkdir()
    write_video(tmp_path / "run" / "0.mp4", 4)
    dataset = VideoFolder(tmp_path, 2)
    (tmp_path / "run" / "0.mp4").unlink()
    with pytest.raises(SampleError, match="cannot read the video: No such file") as caught:
        next(iter(DataLoader(dataset, places="cpu")))
    assert (caught.value.dataset_index, caught.value.field) == (0, "video")


def test_a_position_is_drawn_for_a_video_of_a_dataset_of_ones_own(root):
    def make(_):
        video = Video(root / "run" / "0.mp4", 2, at=None)
        return {"clip": video, "at": video.at}

    options = {"places": "cpu", "batch_size": 4, "seed": 1, "transforms": [t.RandomFlip("clip")]}
    loaders = [DataLoader(Made(make, 4), **options) for _ in range(2)]
    first, again = ([batch["at"].tolist() for batch in loader] for loader in loaders)
    assert first == again
    assert len(set(first[0])) == 4


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_shards_hold_the_files_of_videos(root, tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    write_shards(VideoFolder(root), tmp_path, format=form)
    stored = list(TarDataset(tmp_path) if form == "tar" else ParquetDataset(tmp_path))
    assert [int(sample["cls" if form == "tar" else "label"]) for sample in stored] == [0, 0, 0, 1, 1, 1]
    files = sorted(root.glob("*/*.mp4"))
    assert [sample["video"] for sample in stored] == [path.read_bytes() for path in files]


def test_a_clip_without_frames_is_refused():
    clips = [np.zeros((0, 8, 8, 3), np.uint8)]
    with pytest.raises(SampleError, match=r"a clip of one frame or more, got the shape \(0, 8, 8, 3\)"):
        next(iter(DataLoader(clips, places="cpu", transforms=[t.RandomFlip(None)])))


def test_a_missing_file_and_arguments_that_make_no_sense(root, tmp_path):
    with pytest.raises(SourceError, match="cannot read the video: No such file"):
        Video(tmp_path / "none.mp4").decode()
    for arguments, problem in (
        ({"frames": 0}, "frames must be"),
        ({"rate": 0}, "rate must be frames per second"),
        ({"at": 1.5}, "at must be a number from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=problem):
            VideoFolder(root, **arguments)
    with pytest.raises(FileNotFoundError, match=r"no videos in the folders .*videos end with \.mp4"):
        (tmp_path / "empty").mkdir()
        VideoFolder(tmp_path)
    video = Video(root / "run" / "0.mp4", 2)
    with pytest.raises(SampleError, match="expected masks"):
        fields = "video", t.Mask("mask", stacked=True)
        samples = [{"video": video, "mask": np.zeros((2, 3, 4))}]
        next(iter(DataLoader(samples, places="cpu", transforms=[t.RandomFlip(fields)])))
    with pytest.raises(ValueError, match="without a copy"):
        np.array(video, copy=False)
