"""Small datasets of the libraries that programs read with; each imports only its own, when it is made."""

from __future__ import annotations

import io
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np

COUNT = 256


class Arrays:
    """Samples of an array and a number."""

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).random((COUNT, 32), np.float32)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.rows[index], index


class Tensors(Arrays):
    """Samples of a tensor and a number."""

    def __init__(self) -> None:
        import torch

        self.rows = torch.rand(COUNT, 32)


class Frame(Arrays):
    """Rows of a frame of pandas."""

    def __init__(self) -> None:
        import pandas as pd

        super().__init__()
        self.frame = pd.DataFrame(self.rows).assign(name=[f"row {number}" for number in range(COUNT)])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        row = self.frame.iloc[index]
        return row[:32].to_numpy(np.float32), index


class Graphs(Arrays):
    """Graphs of PyTorch Geometric, which `collate` makes into a batch."""

    def __init__(self) -> None:
        import torch
        from torch_geometric.data import Data

        edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        self.graphs = [Data(x=torch.rand(3, 8), edge_index=edges, y=number) for number in range(COUNT)]

    def __getitem__(self, index: int) -> Any:
        return self.graphs[index]


class Images(Arrays):
    """JPEG files of a folder, read with Pillow."""

    def __init__(self) -> None:
        from PIL import Image

        folder = Path(gettempdir(), "gpuloader-benchmarks-start")
        folder.mkdir(exist_ok=True)
        self.paths = [folder / f"{number:04d}.jpg" for number in range(COUNT)]
        if not all(path.exists() for path in self.paths):
            pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)
            image = Image.fromarray(pixels).resize((224, 224))
            file = io.BytesIO()
            image.save(file, "JPEG")
            for path in self.paths:
                path.write_bytes(file.getvalue())

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        import torch
        from PIL import Image

        pixels = np.array(Image.open(self.paths[index]))
        return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255, index


def hugging_face() -> Any:
    """Make a dataset of Hugging Face that returns tensors."""
    import datasets

    columns = {"ids": [list(range(16))] * COUNT, "label": list(range(COUNT))}
    return datasets.Dataset.from_dict(columns).with_format("torch")


def collate_graphs(graphs: list[Any]) -> Any:
    """Make one batch of graphs, as the loader of PyTorch Geometric does."""
    from torch_geometric.data import Batch

    return Batch.from_data_list(graphs)


def make(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a dataset, and the options that its loader needs."""
    options = {"collate_fn": collate_graphs} if name == "PyG" else {}
    return DATASETS[name](), options


DATASETS = {
    "NumPy": Arrays,
    "torch": Tensors,
    "pandas": Frame,
    "Hugging Face": hugging_face,
    "PyG": Graphs,
    "images": Images,
}
