# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Images
#
# You will see a folder of images become an augmented batch, how many images a second arrive next to
# PyTorch's loader, and what limits the loop. It needs Pillow: `pip install '.[images]'`.

# %%
import importlib.util
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from gpuloader import DataLoader, ImageFolder, show
from gpuloader.transforms import ColorJitter, Normalize, RandomFlip, RandomResizedCrop

# %% [markdown]
# ## A folder for each class
#
# 128 JPEG files of discs and squares, in sizes of their own.

# %%
folder = tempfile.TemporaryDirectory()
random = np.random.default_rng(0)
for number in range(128):
    height, width = random.integers(120, 240, 2)
    down, right = np.ogrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    name = ["disc", "square"][number % 2]
    inside = down**2 + right**2 < 0.4 if name == "disc" else np.maximum(abs(down), abs(right)) < 0.55
    pixels = np.where(inside[..., None], random.integers(0, 256, 3), random.integers(0, 256, 3))
    path = Path(folder.name, name, f"{number:03}.jpg")
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=90)
dataset = ImageFolder(folder.name)
print(len(dataset), "files of the classes", dataset.classes)

# %% [markdown]
# ## The same batch in three epochs
#
# Each row is the same eight images. Windows, flips and colors depend only on seed, epoch and index.

# %%
augment = [
    RandomResizedCrop("image", 96, scale=(0.35, 1.0)),
    RandomFlip("image"),
    ColorJitter("image", brightness=0.3, contrast=0.3, saturation=0.5, hue=0.1),
]
loader = DataLoader(dataset, places="cpu", batch_size=8, seed=3, transforms=augment)
rows = [next(iter(loader)) for _ in range(3)]
images, labels = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
figure, panel = plt.subplots(figsize=(8, 3.2), dpi=80, layout="constrained")
panel.imshow(np.asarray(show((images, labels), columns=8, classes=dataset.classes)))
panel.axis("off")

# %% [markdown]
# ## Images a second of processor time
#
# Windows of 96 × 96, mirrored and normalized, without workers. PyTorch's loader decodes and resizes with
# Pillow, as torchvision does. The two loaders take turns, and the median of five counts. Processor time
# varies less than elapsed time on a machine that does other things, too. Where the two ranges overlap,
# there is no difference; only ours mirrors.

# %%
window = [RandomResizedCrop("image", 96), RandomFlip("image"), Normalize("image", 127.5, 127.5, to="CHW")]
loaders = {"gpuloader": DataLoader(dataset, places="cpu", batch_size=32, seed=0, transforms=window)}
if importlib.util.find_spec("torch") is not None:
    import torch

    class Files(torch.utils.data.Dataset):
        """The same files, decoded and cropped by Pillow."""

        paths = sorted(Path(folder.name).glob("*/*.jpg"))

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            with Image.open(self.paths[index]) as file:
                picture = file.convert("RGB")
            size = int(min(picture.size) * random.uniform(0.5, 1))
            left, top = (int(random.integers(0, side - size + 1)) for side in picture.size)
            box = (left, top, left + size, top + size)
            pixels = np.array(picture.resize((96, 96), Image.Resampling.BILINEAR, box=box))
            return torch.from_numpy((pixels.transpose(2, 0, 1) - 127.5).astype(np.float32) / 127.5), index % 2

    loaders["torch"] = torch.utils.data.DataLoader(Files(), batch_size=32)

rates = {name: [] for name in loaders}
for _ in range(5):
    for name, one in loaders.items():
        start = time.process_time()
        count = sum(len(labels) for _, labels in one)
        rates[name].append(count / (time.process_time() - start))
for name, turns in rates.items():
    print(f"{name:9} {np.median(turns):6,.0f} pictures/s, from {min(turns):,.0f} to {max(turns):,.0f}")

# %% [markdown]
# ## What limits the loop

# %%
print(loaders["gpuloader"].explain())
folder.cleanup()
