"""How many lines a program needs to load its data, with gpuloader and with PyTorch: the table of docs/why.md.

python benchmarks/program_lines.py

Each pair of functions below returns a loader for the same task, from the same files. Every line of code in a
function counts, imports included, as ruff formats it. PyTorch's programs use torchvision, torchcodec,
pyarrow, soundfile and soxr where these help. Tests run the pairs on small files.
"""

# ruff: noqa: D103 - the names of the tasks say it

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

TASKS = {
    "images": "images to classes",
    "tokens": "tokens of a corpus",
    "texts": "texts of varying length",
    "table": "a table",
    "segmentation": "images with masks",
    "detection": "images with boxes",
    "video": "videos to classes",
    "audio": "audio to classes",
    "packed": "packed documents",
    "contrastive": "views of images",
}


def images_ours(root: Path) -> Any:
    from gpuloader import DataLoader, ImageFolder
    from gpuloader.transforms import Normalize, RandomFlip, RandomResizedCrop

    steps = [RandomResizedCrop("image", 32), RandomFlip("image"), Normalize("image", 127.5, 127.5)]
    return DataLoader(
        ImageFolder(root / "images"), batch_size=4, shuffle=True, transforms=steps, output="torch"
    )


def images_torch(root: Path) -> Any:
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(32),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ]
    return DataLoader(
        ImageFolder(root / "images", v2.Compose(steps)), batch_size=4, shuffle=True, pin_memory=True
    )


def tokens_ours(root: Path) -> Any:
    import numpy as np

    from gpuloader import DataLoader, TokenWindows
    from gpuloader.transforms import Cast

    tokens = TokenWindows(np.memmap(root / "tokens.bin", np.uint16), 16, targets=True)
    return DataLoader(tokens, batch_size=4, shuffle=True, transforms=[Cast("0", "int64"), Cast("1", "int64")])


def tokens_torch(root: Path) -> Any:
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Windows(Dataset):
        def __init__(self, tokens, length):
            self.tokens, self.length = tokens, length

        def __len__(self):
            return (len(self.tokens) - 1) // self.length

        def __getitem__(self, index):
            start = index * self.length
            window = self.tokens[start : start + self.length + 1].astype(np.int64)
            return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])

    tokens = np.memmap(root / "tokens.bin", np.uint16)
    return DataLoader(Windows(tokens, 16), batch_size=4, shuffle=True, pin_memory=True)


def texts_ours(texts: list[list[int]]) -> Any:
    from gpuloader import BucketSampler, DataLoader

    batches = BucketSampler([len(text) for text in texts], batch_size=4)
    samples = [{"tokens": text} for text in texts]
    return DataLoader(samples, batch_sampler=batches, pad={"tokens": 0})


def texts_torch(texts: list[list[int]]) -> Any:
    import random

    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader, Sampler

    class Buckets(Sampler):
        def __init__(self, lengths, size):
            self.lengths, self.size = lengths, size

        def __len__(self):
            return -(-len(self.lengths) // self.size)

        def __iter__(self):
            order = random.sample(range(len(self.lengths)), len(self.lengths))
            pool = 50 * self.size
            for start in range(0, len(order), pool):
                part = sorted(order[start : start + pool], key=self.lengths.__getitem__)
                batches = [part[at : at + self.size] for at in range(0, len(part), self.size)]
                yield from random.sample(batches, len(batches))

    def collate(rows):
        return {"tokens": pad_sequence([torch.tensor(row) for row in rows], batch_first=True)}

    batches = Buckets([len(text) for text in texts], 4)
    return DataLoader(texts, batch_sampler=batches, collate_fn=collate, pin_memory=True)


def table_ours(root: Path) -> Any:
    from gpuloader import DataLoader, ParquetDataset

    return DataLoader(ParquetDataset(root / "table.parquet", shuffle=True), batch_size=4)


def table_torch(root: Path) -> Any:
    import pyarrow.parquet
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __init__(self, path):
            table = pyarrow.parquet.read_table(path)
            self.columns = {name: torch.tensor(table[name].to_numpy()) for name in table.column_names}

        def __len__(self):
            return len(next(iter(self.columns.values())))

        def __getitem__(self, index):
            return {name: column[index] for name, column in self.columns.items()}

    return DataLoader(Rows(root / "table.parquet"), batch_size=4, shuffle=True, pin_memory=True)


def segmentation_ours(pairs: list[tuple[Path, Path]]) -> Any:
    from gpuloader import DataLoader, Image
    from gpuloader.transforms import Cast, Normalize, RandomFlip, RandomResizedCrop

    class Pairs:
        def __len__(self):
            return len(pairs)

        def __getitem__(self, index):
            image, mask = pairs[index]
            return {"image": Image.read(image), "mask": Image.read(mask)}

    fields = ("image", "mask")
    steps = [RandomResizedCrop(fields, 32), RandomFlip(fields)]
    finish = [Normalize("image", 127.5, 127.5), Cast("mask", "int64")]
    return DataLoader(Pairs(), batch_size=4, shuffle=True, transforms=steps + finish, output="torch")


def segmentation_torch(pairs: list[tuple[Path, Path]]) -> Any:
    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    class Pairs(Dataset):
        transform = v2.Compose(
            [
                v2.RandomResizedCrop(32),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(
                    {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None},
                    scale=True,
                ),
                v2.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

        def __len__(self):
            return len(pairs)

        def __getitem__(self, index):
            image, mask = map(Image.open, pairs[index])
            mask = tv_tensors.Mask(np.array(mask))
            return self.transform({"image": tv_tensors.Image(image), "mask": mask})

    return DataLoader(Pairs(), batch_size=4, shuffle=True, pin_memory=True)


def detection_ours(samples: list[dict[str, Any]]) -> Any:
    from gpuloader import DataLoader
    from gpuloader.transforms import Boxes, Normalize, RandomFlip, RandomResizedCrop

    fields = ("image", Boxes("boxes", labels="labels"))
    steps = [RandomResizedCrop(fields, 32), RandomFlip(fields), Normalize("image", 127.5, 127.5)]
    return DataLoader(samples, batch_size=4, shuffle=True, transforms=steps, output="torch")


def detection_torch(samples: list[dict[str, Any]]) -> Any:
    import torch
    from torch.utils.data import DataLoader, Dataset
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    class Samples(Dataset):
        transform = v2.Compose(
            [
                v2.RandomResizedCrop(32),
                v2.RandomHorizontalFlip(),
                v2.SanitizeBoundingBoxes(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

        def __len__(self):
            return len(samples)

        def __getitem__(self, index):
            sample = samples[index]
            image = tv_tensors.Image(torch.from_numpy(sample["image"]).permute(2, 0, 1))
            boxes = tv_tensors.BoundingBoxes(sample["boxes"], format="XYXY", canvas_size=image.shape[1:])
            return self.transform({"image": image, "boxes": boxes, "labels": torch.tensor(sample["labels"])})

    def collate(rows):
        lists = {name: [row[name] for row in rows] for name in ("boxes", "labels")}
        return {"image": torch.stack([row["image"] for row in rows]), **lists}

    return DataLoader(Samples(), batch_size=4, shuffle=True, collate_fn=collate, pin_memory=True)


def video_ours(root: Path) -> Any:
    from gpuloader import DataLoader, VideoFolder
    from gpuloader.transforms import Normalize, RandomFlip, RandomResizedCrop

    steps = [RandomResizedCrop("video", 32), RandomFlip("video"), Normalize("video", 127.5, 127.5)]
    dataset = VideoFolder(root / "videos", frames=4, rate=10)
    return DataLoader(dataset, batch_size=2, shuffle=True, transforms=steps, output="torch")


def video_torch(root: Path) -> Any:
    import torch
    from torch.utils.data import DataLoader
    from torchcodec.decoders import VideoDecoder
    from torchvision.datasets import DatasetFolder
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(32),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ]

    def load(path):
        decoder = VideoDecoder(path, num_ffmpeg_threads=1)
        begin = float(torch.rand(())) * max(decoder.metadata.duration_seconds - 0.4, 0)
        last = decoder.metadata.end_stream_seconds - 1e-3
        times = [min(begin + (number + 0.5) / 10, last) for number in range(4)]
        return decoder.get_frames_played_at(times).data

    dataset = DatasetFolder(root / "videos", load, (".mp4",), v2.Compose(steps))
    return DataLoader(dataset, batch_size=2, shuffle=True, pin_memory=True)


def audio_ours(root: Path) -> Any:
    from gpuloader import AudioFolder, DataLoader

    dataset = AudioFolder(root / "audio", seconds=0.5, rate=16_000)
    return DataLoader(dataset, batch_size=2, shuffle=True, output="torch")


def audio_torch(root: Path) -> Any:
    import soundfile
    import soxr
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import DatasetFolder

    def load(path):
        with soundfile.SoundFile(path) as file:
            wanted = round(0.5 * file.samplerate)
            file.seek(int(float(torch.rand(())) * max(file.frames - wanted, 0)))
            values = file.read(wanted, "float32", always_2d=True).mean(1)
            audio = torch.from_numpy(soxr.resample(values, file.samplerate, 16_000))
        return torch.nn.functional.pad(audio, (0, 8_000 - len(audio)))

    dataset = DatasetFolder(root / "audio", load, (".flac",))
    return DataLoader(dataset, batch_size=2, shuffle=True, pin_memory=True)


def packed_ours(tokens: Any, starts: Any) -> Any:
    from gpuloader import DataLoader, PackedSequences
    from gpuloader.transforms import Cast

    rows = PackedSequences(tokens, 64, documents=starts)
    return DataLoader(rows, batch_size=2, shuffle=True, transforms=[Cast("tokens", "int64")], output="torch")


def packed_torch(tokens: Any, starts: Any) -> Any:
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Packed(Dataset):
        def __init__(self, tokens, starts, length):
            self.tokens, self.length = torch.from_numpy(tokens.astype(np.int64)), length
            self.rows, room = [], []
            pieces = [
                (at, min(at + length, stop))
                for start, stop in zip(starts, [*starts[1:], len(tokens)], strict=True)
                for at in range(start, stop, length)
            ]
            for start, stop in sorted(pieces, key=lambda piece: piece[0] - piece[1]):
                fits = [row for row, left in enumerate(room) if left >= stop - start]
                row = min(fits, key=room.__getitem__) if fits else len(room)
                if not fits:
                    self.rows.append([])
                    room.append(length)
                self.rows[row].append((start, stop))
                room[row] -= stop - start

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            made = {name: torch.zeros(self.length, dtype=torch.int64) for name in ("tokens", "position_ids")}
            made["labels"], at, cuts = torch.full((self.length,), -100), 0, [0]
            for start, stop in self.rows[index]:
                size = stop - start
                made["tokens"][at : at + size] = self.tokens[start:stop]
                made["labels"][at : at + size - 1] = self.tokens[start + 1 : stop]
                made["position_ids"][at : at + size] = torch.arange(size)
                at += size
                cuts.append(at)
            return made, cuts

    def collate(samples):
        made = {name: torch.stack([one[name] for one, _ in samples]) for name in samples[0][0]}
        length = made["tokens"].shape[1]
        cuts = [row * length + cut for row, (_, cuts) in enumerate(samples) for cut in cuts]
        cuts = sorted({*cuts, len(samples) * length})
        return {**made, "cu_seqlens": torch.tensor(cuts, dtype=torch.int32)}

    return DataLoader(
        Packed(tokens, starts, 64), batch_size=2, shuffle=True, collate_fn=collate, pin_memory=True
    )


def contrastive_ours(root: Path) -> Any:
    from gpuloader import DataLoader, ImageFolder
    from gpuloader.transforms import ColorJitter, Grayscale, Normalize, RandomFlip, RandomResizedCrop, Views

    steps = [
        RandomResizedCrop("image", 32),
        RandomFlip("image"),
        ColorJitter("image", 0.4, 0.4, 0.4, 0.1, p=0.8),
        Grayscale("image", p=0.2),
    ]
    transforms = [Views(2, steps), Normalize("image", 127.5, 127.5)]
    return DataLoader(
        ImageFolder(root / "images"), batch_size=4, shuffle=True, transforms=transforms, output="torch"
    )


def contrastive_torch(root: Path) -> Any:
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(32),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        v2.RandomGrayscale(0.2),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ]
    augment = v2.Compose(steps)
    dataset = ImageFolder(root / "images", lambda image: torch.stack([augment(image), augment(image)]))
    return DataLoader(dataset, batch_size=4, shuffle=True, pin_memory=True)


def count_lines(name: str) -> int:
    """Return the lines of code in the body of a function of this module, without blank ones."""
    source = inspect.getsource(getattr(sys.modules[__name__], name))
    [function] = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    body = source.splitlines()[function.body[0].lineno - 1 :]
    return sum(bool(line.strip()) for line in body)


def make_table() -> list[str]:
    """Return the lines of the table of docs/why.md."""
    rows = [
        (words, count_lines(f"{name}_ours"), count_lines(f"{name}_torch")) for name, words in TASKS.items()
    ]
    rows.append(("all ten", *(sum(row[column] for row in rows) for column in (1, 2))))
    return [
        "| what the program loads | gpuloader | PyTorch |",
        "|---|---:|---:|",
        *(f"| {words} | {ours} | {theirs} |" for words, ours, theirs in rows),
    ]


if __name__ == "__main__":
    print("\n".join(make_table()))
