"""Tar shards in the format of the webdataset package."""

import bz2
import gzip
import io
import json
import lzma
import tarfile

import numpy as np
import pytest

from gpuloader import DataFileError, DataLoader, SampleError, SourceError, TarDataset
from gpuloader.errors import MissingPackage
from gpuloader.sources.files import remote_files as opening
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, name_workers
from tests.sources.files.serving import serve

pytest.importorskip("webdataset")

SHARDS, SAMPLES = 6, 20


def decode(sample):
    return {
        "label": int(sample["cls"]),
        "image": np.frombuffer(sample["bin"], np.uint8),
        "key": sample["__key__"],
    }


@pytest.fixture
def folder(tmp_path):
    for shard in range(SHARDS):
        with tarfile.open(tmp_path / f"{shard:03d}.tar", "w") as file:
            for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
                for extension, data in (("bin", bytes([number] * 5)), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{number:04d}.{extension}")
                    member.size = len(data)
                    file.addfile(member, io.BytesIO(data))
    return tmp_path


def check(batch):
    labels = batch["label"]
    assert (batch["image"] == labels[:, None]).all()
    assert batch["key"] == [f"{label:04d}" for label in labels]
    return labels.tolist()


def load(folder, workers=INLINE, **options):
    options = {"shuffle": True, "shuffle_buffer": 30, **options}
    dataset = TarDataset(f"{folder}/{{000..005}}.tar", decode, **options)
    return DataLoader(dataset, places="cpu", batch_size=7, **workers)


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, THREADS, PROCESSES], ids=name_workers)
def test_every_sample_arrives_once(folder, workers):
    loader = load(folder, workers)
    epochs = [[label for batch in loader for label in check(batch)] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SHARDS * SAMPLES))] * 2
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": False, "shuffle_buffer": None}], ids=["shuffled", "in order"]
)
def test_a_loader_resumes_where_another_was(folder, options):
    whole = [check(batch) for batch in load(folder, **options)]
    first = load(folder, **options)
    batches = iter(first)
    for _ in range(6):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    second = load(folder, **options)
    second.load_state_dict(state)
    assert [check(batch) for batch in second] == whole[6:]


def test_samples_without_decode_are_bytes(folder):
    sample = next(iter(TarDataset(folder / "000.tar")))
    assert sample == {"__key__": "0000", "__url__": str(folder / "000.tar"), "bin": bytes(5), "cls": b"0"}


def test_a_server_that_drops_connections(folder, monkeypatch):
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
    monkeypatch.setattr(opening, "FIRST_WAIT", 0.01)
    with serve(folder, drops=lambda number: number % 2 == 1) as served:
        found = [label for batch in load(served.url) for label in check(batch)]
        assert served.dropped == 2 * SHARDS  # reading the end of each file, then all of it
    assert sorted(found) == list(range(SHARDS * SAMPLES))


@pytest.mark.parametrize(
    "body",
    [lambda body: body[:7000], lambda body: body[:8192], lambda body: b"x" * 2000, lambda body: b""],
    ids=["truncated", "between members", "foreign", "empty"],
)
def test_a_bad_file_is_an_error(folder, body):
    path = folder / "003.tar"
    path.write_bytes(body(path.read_bytes()))
    with pytest.raises(DataFileError, match="the file is truncated or not a tar file") as caught:
        list(load(folder))
    assert caught.value.file == str(path)


def gzipped(body, keep):
    packed = gzip.compress(body)
    return packed[: int(len(packed) * keep)]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_shards_may_be_packed_whatever_they_are_called(folder, pack):
    path = folder / "003.tar"
    path.write_bytes(pack(path.read_bytes()))
    found = [label for batch in load(folder) for label in check(batch)]
    assert sorted(found) == list(range(SHARDS * SAMPLES))


@pytest.mark.parametrize(
    "body",
    [
        lambda body: gzipped(body, 0.5),
        lambda body: gzipped(body, 0.9),
        lambda body: bz2.compress(body)[:-200],
        lambda body: lzma.compress(body)[:-200],
        lambda body: gzip.compress(body)[:40] + b"junk" + gzip.compress(body)[44:],
        lambda body: body[:8192],
    ],
    ids=["half", "most", "bz2", "xz", "damaged", "unpacked"],
)
def test_a_shard_that_was_cut_loses_no_sample_unnoticed(folder, body):
    path = folder / "003.tar.gz"
    path.write_bytes(body((folder / "003.tar").read_bytes()))
    with pytest.raises(DataFileError, match="the file is truncated or not a tar file") as caught:
        list(TarDataset(path, decode))
    assert caught.value.file == str(path)


def test_what_decode_raises_names_its_sample(folder):
    dataset = TarDataset(folder / "001.tar", lambda sample: int(sample["bin"]))
    with pytest.raises(SampleError, match="the dataset raised ValueError") as caught:
        list(DataLoader(dataset, places="cpu", batch_size=7))
    assert caught.value.__cause__.__notes__ == [
        f"gpuloader: raised by decode for '0020' of {folder / '001.tar'}"
    ]


def test_a_missing_file_is_an_error(folder):
    (folder / "003.tar").unlink()
    with pytest.raises(SourceError, match=r"003\.tar: cannot open the file"):
        list(load(folder))


def test_wrong_arguments_and_a_missing_package(folder, monkeypatch):
    with pytest.raises(TypeError, match="decode must be callable"):
        TarDataset(folder / "000.tar", "jpg")
    monkeypatch.setitem(__import__("sys").modules, "webdataset.shardlists", None)
    with pytest.raises(MissingPackage, match=r"pip install '.*\[webdataset\]"):
        TarDataset(folder / "000.tar")
