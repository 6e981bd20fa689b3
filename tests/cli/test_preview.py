"""``gpuloader show``: the folders that it draws, and what it says of those that it cannot."""

import os

import numpy as np
import pytest

from tests.cli.running import invoke, run
from tests.picture_files import encode, make_pixels, pillow, write_folder


@pytest.fixture
def annotated(tmp_path):
    """Return a folder of gray images, in which a mask and a box mark the same part."""
    for name in ("images/more", "masks/more", "labels/more"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(6):
        mask = np.zeros((60, 60), np.uint8)
        mask[20:40, 20:40] = 1
        (tmp_path / f"images/more/{number}.jpg").write_bytes(encode(np.full((60, 60, 3), 128, np.uint8)))
        (tmp_path / f"masks/more/{number}.png").write_bytes(encode(mask, "PNG"))
        (tmp_path / f"labels/more/{number}.txt").write_text(f"{number} 0.5 0.5 0.5 0.5\n\n" * (number > 0))
    return tmp_path


def drawn(folder, *arguments, count, size=32):
    """Return the pixels of the images that the command has drawn."""
    output = folder.parent / "drawn.png"
    shown = invoke("show", str(folder), "--output", str(output), "--size", str(size), *arguments)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"{output}: {count} of ")
    image = pillow.open(output)
    columns = int(np.ceil(np.sqrt(count)))
    assert image.width == columns * (size + 4) + 4
    return np.asarray(image)


def test_a_folder_per_class_or_of_images_is_drawn(tmp_path):
    write_folder(tmp_path / "classes")
    pixels = drawn(tmp_path / "classes", count=8)
    np.testing.assert_array_equal(drawn(tmp_path / "classes", "--count", "20", count=8), pixels)
    assert (drawn(tmp_path / "classes", "--seed", "1", count=8) != pixels).any()
    drawn(tmp_path / "classes" / "cat", "--count", "3", count=3)


def test_masks_and_boxes_are_drawn(annotated):
    plain = drawn(annotated, "--plain", count=6, size=60)[4:64, 4:64].astype(int)
    colored = abs(plain - 128).max(2) > 5
    assert colored[22:38, 22:38].all()
    assert not colored[:14].any()
    assert (abs(drawn(annotated, count=6, size=60).astype(int) - 128).max(2) > 5).any()
    (annotated / "masks").rename(annotated / "other")
    box = abs(drawn(annotated, "--plain", count=6, size=60).astype(int) - 128).max(2) > 5
    edges = [box[4:64, left : left + 60][15:45, 15] for left in (4, 68)]
    assert any(edge.all() for edge in edges)
    (annotated / "labels" / "more" / "3.txt").unlink()  # without a file, there are no boxes
    drawn(annotated, count=6)


def test_what_cannot_be_drawn_is_told_in_a_line(annotated, tmp_path):
    (tmp_path / "empty").mkdir()
    (annotated / "labels/more/5.txt").write_text("1 2 3\n")
    expected = {
        (str(tmp_path / "none"),): "is not a folder",
        (str(tmp_path / "empty"),): "no images in",
        (str(annotated),): "5.txt: expected lines of class, x, y, width and height",
        (str(annotated / "images/more"), "--output", str(tmp_path / "x" / "y.png")): "No such file",
        (
            str(annotated / "images/more"),
            "--output",
            str(tmp_path / "x.what"),
        ): "the name must end with .jpg, ",
        (str(annotated / "images/more"), "--size", "100000"): "--size 100000: 6 of these are too many",
        (str(annotated), "--count", "0"): "--count: must be 1 or more",
    }
    for arguments, problem in expected.items():
        shown = invoke("show", *arguments)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert problem in shown.stderr
        assert shown.stderr.count("\n") == 1
    assert (
        "the name must end with" in invoke("show", str(annotated), "--output", "x").stderr
    )  # before the work
    (annotated / "labels/more/5.txt").unlink()
    (annotated / "masks/more/0.png").unlink()
    assert "0.jpg has no mask of the same name" in invoke("show", str(annotated)).stderr


def test_pictures_of_any_size_are_drawn(tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.png").write_bytes(encode(make_pixels(3, 200), "PNG"))
    drawn(tmp_path / "some", count=1, size=7)


def test_an_output_that_nobody_reads_is_no_mistake(tmp_path):
    """As with ``gpuloader show photos | head -0`` where Python does not buffer its output."""
    write_folder(tmp_path / "photos")
    reading, writing = os.pipe()
    os.close(reading)
    command = ["-u", "-m", "gpuloader", "show", str(tmp_path / "photos"), "--output", str(tmp_path / "x.png")]
    with open(writing, "wb") as gone:
        ended = run(*command, stdout=gone)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert (tmp_path / "x.png").exists()
