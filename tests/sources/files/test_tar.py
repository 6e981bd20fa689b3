"""Tar shards in the format of the webdataset package."""

import bz2
import gzip
import itertools
import lzma
import subprocess
import tarfile

import numpy as np
import pytest

from gpuloader import DataFileError, DataLoader, SampleError, TarDataset, write_shards
from gpuloader.sources.files.tar import expand
from tests.fetch.faulty import run_program
from tests.sources.files.tar_files import write_tar

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
        numbers = range(shard * SAMPLES, (shard + 1) * SAMPLES)
        pairs = [
            [(f"{number:04d}.bin", bytes([number] * 5)), (f"{number:04d}.cls", str(number).encode())]
            for number in numbers
        ]
        write_tar(tmp_path / f"{shard:03d}.tar", itertools.chain(*pairs))
    return tmp_path


def load(folder):
    dataset = TarDataset(f"{folder}/{{000..005}}.tar", decode, shuffle=True, shuffle_buffer=30)
    return DataLoader(dataset, places="cpu", batch_size=7)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_shards_may_be_packed_whatever_they_are_called(folder, pack):
    path = folder / "000.tar"
    path.write_bytes(pack(path.read_bytes()))
    found = list(TarDataset(path))
    assert found[0] == {"__key__": "0000", "__url__": str(path), "bin": bytes(5), "cls": b"0"}
    assert len(found) == SAMPLES


def test_zstandard_is_refused_by_name(tmp_path):
    (tmp_path / "a.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(600))
    with pytest.raises(DataFileError, match=r"a\.tar\.zst: tar files packed by Zstandard are not read; pack"):
        list(TarDataset(tmp_path / "a.tar.zst"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_archives_one_after_another_are_one_shard(folder, pack):
    path = folder / "all.tar"
    path.write_bytes(b"".join(pack((folder / f"00{number}.tar").read_bytes()) for number in range(3)))
    assert [sample["cls"] for sample in TarDataset(path)] == [b"%d" % number for number in range(3 * SAMPLES)]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("003.tar", lambda body: body[:7000]),
        ("003.tar", lambda body: body[:8192]),  # between members
        ("003.tar", lambda body: b"x" * 2000),
        ("003.tar", lambda body: b""),
        ("003.tar.gz", lambda body: cut(gzip.compress(body), 0.5)),
        ("003.tar.gz", lambda body: cut(gzip.compress(body), 0.9)),
        ("003.tar.gz", lambda body: bz2.compress(body)[:-200]),
        ("003.tar.gz", lambda body: lzma.compress(body)[:-200]),
        ("003.tar.gz", lambda body: gzip.compress(body)[:40] + b"junk" + gzip.compress(body)[44:]),
        ("003.tar.gz", lambda body: body[:8192]),
        ("003.tar.gz", lambda body: gzip.compress(body[:8192])),
        ("003.tar", lambda body: body[:8192] + b"junk" + body[8196:]),  # in a header
        ("003.tar", lambda body: body + b"junk"),
        ("003.tar", lambda body: claim(10**14, body)),
    ],
)
def test_a_shard_that_was_cut_or_damaged_loses_no_sample_unnoticed(folder, name, body):
    path = folder / name
    path.write_bytes(body((folder / "003.tar").read_bytes()))
    with pytest.raises(DataFileError, match="the file is truncated or not a tar file") as caught:
        list(load(folder) if name == "003.tar" else TarDataset(path, decode))
    assert caught.value.file == str(path)


def test_memory_that_runs_out_is_not_taken_for_damage(folder, monkeypatch):
    def refuse(self):
        raise MemoryError("no room for this member")

    monkeypatch.setattr(tarfile.TarFile, "next", refuse)
    with pytest.raises(MemoryError, match="no room for this member"):
        list(TarDataset(folder / "000.tar"))


def test_a_member_with_holes_is_whole(tmp_path):
    whole = b"head" + bytes(1 << 20) + b"tail"
    for number, name in enumerate(["0.bin", "1.bin"]):
        with (tmp_path / name).open("wb") as file:
            file.write(whole[:4])
            file.seek(len(whole) - 4 - number)
            file.write(whole[-4:])
    names = [tmp_path / "s.tar", "-C", tmp_path, "0.bin", "1.bin"]
    try:
        subprocess.run(["tar", "--sparse", "--format=gnu", "-cf", *names], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs GNU tar")
    samples = [sample["bin"] for sample in TarDataset(tmp_path / "s.tar")]
    assert samples == [whole, whole[:4] + whole[5:]]


def cut(body, share):
    return body[: int(len(body) * share)]


def claim(size, body):
    """Return a tar file whose first member claims to have so many bytes."""
    header = bytearray(body[:512])
    header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + body[512:]


def test_what_decode_raises_names_its_sample(folder):
    path = folder / "001.tar"
    loader = DataLoader(TarDataset(path, lambda sample: int(sample["bin"])), places="cpu", batch_size=7)
    with pytest.raises(SampleError, match="the dataset raised ValueError") as caught:
        list(loader)
    assert caught.value.__cause__.__notes__ == [f"gpuloader: raised by decode for '0020' of {path}"]


def test_no_other_package_is_imported(folder):
    code = """
        import sys
        from gpuloader import TarDataset

        print(len(list(TarDataset(sys.argv[1] + "/{000..005}.tar"))))
        print({"webdataset", "torch", "fsspec", "braceexpand"} & set(sys.modules))
    """
    assert run_program(code, str(folder)).stdout == f"{SHARDS * SAMPLES}\nset()\n"


@pytest.mark.parametrize(
    "pattern",
    [
        "a-{000..012}.tar",
        "{train,test}/{8..11}.tar",
        "a{b,c{1..3},}d{x,y}",
        "{3..1}{a..c}{1..10..4}{05..3}",
        "{only}{}{a-b}",
        "plain",
        "s3://bucket/${PART}/{0..2}.tar",
    ],
)
def test_names_expand_as_those_of_webdataset(pattern, monkeypatch):
    shardlists = pytest.importorskip("webdataset.shardlists")
    monkeypatch.setenv("WDS_PART", "{a,b}")
    assert expand(pattern) == shardlists.expand_urls(pattern)


MEMBERS = "a/1.JPG a/1.seg.png a/__meta__ __skip__/1.x 2.cls b/2.cls no 2.cls x. c.d/e.f"


def test_members_are_grouped_as_by_webdataset(tmp_path):
    iterators = pytest.importorskip("webdataset.tariterators")
    members = [(name, bytes([at])) for at, name in enumerate(MEMBERS.split())]
    url = str(write_tar(tmp_path / "a.tar", members))
    with open(url, "rb") as stream:
        files = iterators.tar_file_expander([{"url": url, "stream": stream}])
        wanted = list(iterators.group_by_keys(files))
    found = list(TarDataset(url))
    assert found == wanted
    assert [list(one) for one in found] == [list(one) for one in wanted]
    assert len(found) > 4


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE], ids=["hard", "symbolic"])
@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("2.txt", "1.txt"),
        ("._1.txt", "1.txt"),
        ("LICENSE", "1.txt"),
        ("__a__/1.txt", "1.txt"),
        ("data.v1", "data"),
    ],
)
def test_a_sample_that_is_a_link_is_an_error(tmp_path, kind, name, to):
    path = write_tar(tmp_path / "a.tar", [("1.txt", b"one")])
    link = tarfile.TarInfo(name)
    link.type, link.linkname = kind, to
    with tarfile.open(path, "a") as file:
        file.addfile(link)
    if name == "2.txt":
        with pytest.raises(DataFileError, match=r"a\.tar: '2.txt' holds no bytes but a link to '1.txt'; "):
            list(TarDataset(path))
    else:  # as a file, it would belong to no sample either, or it is a folder
        assert [sample["txt"] for sample in TarDataset(path)] == [b"one"]


MASKED = np.ma.masked_array([1, 2], [0, 1])


@pytest.mark.parametrize("kind", ["tar", "parquet"])
@pytest.mark.parametrize(
    "value", [MASKED, [MASKED], {"y": MASKED}, [{"y": (MASKED,)}]], ids=["field", "list", "dict", "both"]
)
def test_masked_elements_are_not_written(tmp_path, kind, value):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    with pytest.raises(SampleError, match=r"masked elements; fill them, e\.g\. with value\.filled\(0\)"):
        write_shards([{"x": value}], tmp_path, format=kind)


def test_two_images_of_one_name_are_an_error(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"a"), ("1.png", b"b")])
    with pytest.raises(ValueError, match="two members are the image 'image'"):
        list(TarDataset(path, "image"))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["1.cls", "1.CLS"], "one sample has two members .* '1.CLS'.*rename one"),
        (["images/0001", "images/0002"], "no member is a file with an extension, .* 'images/0002'"),
    ],
)
def test_members_that_make_no_samples_are_an_error(tmp_path, names, problem):
    path = write_tar(tmp_path / "a.tar", [(name, b"a") for name in names])
    with pytest.raises(DataFileError, match=rf"a\.tar: {problem}"):
        list(TarDataset(path))
