"""The programs whose lines the documentation counts: they run, and both of a pair load the same."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from benchmarks import program_lines
from tests.picture_files import make_pixels, pillow, write_folder

ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_is_counted():
    assert "\n".join(program_lines.make_table()) in (ROOT / "docs/why.md").read_text()


def write_files(root):
    """Write files for all programs; return the arguments of each."""
    arrow, soundfile, av = (pytest.importorskip(name) for name in ("pyarrow", "soundfile", "av"))
    import pyarrow.parquet

    write_folder(root / "images", form="PNG")
    np.arange(200, dtype=np.uint16).tofile(root / "tokens.bin")
    table = arrow.table({"x": np.arange(8.0), "y": np.arange(8)})
    pyarrow.parquet.write_table(table, root / "table.parquet")
    pairs, samples = [], []
    for number in range(4):
        pixels = make_pixels(40, 50, seed=number)
        pillow.fromarray(pixels).save(root / f"{number}.png")
        pillow.fromarray(pixels[..., 0] % 3).save(root / f"{number}.mask.png")
        pairs.append((root / f"{number}.png", root / f"{number}.mask.png"))
        samples.append({"image": pixels, "boxes": np.float32([[0, 0, 50, 40]]), "labels": np.array([number])})
    for name in ("left", "right"):
        for kind in ("videos", "audio"):
            (root / kind / name).mkdir(parents=True)
        soundfile.write(root / "audio" / name / "0.flac", np.zeros(20_000), 16_000)
        with av.open(str(root / "videos" / name / "0.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", 25, width=48, height=32)
            for number in range(30):
                pixels = np.full((32, 48, 3), number * 8, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
            container.mux(stream.encode())
    texts = [[*range(1, 2 + number)] for number in range(8)]
    given = {"texts": (texts,), "segmentation": (pairs,), "detection": (samples,)}
    given["packed"] = np.arange(100, 300), [0, 30, 70, 75, 130]
    return {name: given.get(name, (root,)) for name in program_lines.TASKS}


def shapes_of(batch):
    """Return the shapes of all arrays of a batch whose samples have one shape, sorted."""
    parts = batch.values() if isinstance(batch, dict) else batch
    return sorted(tuple(part.shape) for part in parts if hasattr(part, "shape"))


@pytest.mark.filterwarnings("ignore")  # as for want of a GPU, and of files that PyTorch leaves open
def test_both_programs_of_a_task_load_the_same(tmp_path):
    pytest.importorskip("torch")
    ours, theirs = {}, {}
    for name, arguments in write_files(tmp_path).items():
        ours[name] = next(iter(getattr(program_lines, f"{name}_ours")(*arguments)))
        # Where torchvision is missing, other pairs run.
        with suppress(ImportError):
            theirs[name] = next(iter(getattr(program_lines, f"{name}_torch")(*arguments)))
    assert len(ours) == 10
    assert {"tokens", "table", "texts", "packed"} <= theirs.keys()
    for name, batch in theirs.items():
        if name == "packed":
            batch.pop("cu_seqlens"), ours[name].pop("cu_seqlens")
        if name not in ("texts", "detection"):  # their lengths are drawn
            assert shapes_of(batch) == shapes_of(ours[name]), name
