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
# # From a reader to a training step
#
# A reader is a function without arguments that returns an iterable. A loader runs it in a thread, writes
# each batch once into a slot, and delivers it on the place you choose. The same cells run on a CPU and on a
# GPU.

# %%
import matplotlib.pyplot as plt
import numpy as np

import gpuloader
from gpuloader.demo.training import LinearModel
from gpuloader.sources import mnist

digits = mnist.sample()  # 5,000 digits that ship with the package
digits.train.images.shape, digits.train.labels[:5]

# %% [markdown]
# ## A reader
#
# `mnist.reader` shuffles and yields ready batches. You can use any generator function instead.

# %%
reader = mnist.reader(digits.train, batch_size=100, seed=1)
images, labels = next(iter(reader()))
assert images.shape == (100, 784)
assert labels.shape == (100, 1)

# %%
figure, panels = plt.subplots(1, 10, figsize=(9, 1.3), dpi=90, layout="constrained")
for panel, image, label in zip(panels, images, labels, strict=False):
    panel.imshow(image.reshape(28, 28), cmap="gray_r")
    panel.set_title(f"{label[0]:.0f}")
    panel.set_axis_off()

# %% [markdown]
# ## A loader
#
# Its queue holds up to `capacity` batches. Without a feed list, a step is a flat list of arrays. The
# default place is the first GPU, or the CPU if there is none; `places="cpu"` or `places="gpu:0"` chooses
# one.

# %%
loader = gpuloader.DataLoader.from_generator(capacity=8, return_list=True).set_batch_generator(reader)

# %% [markdown]
# ## A step
#
# Batches are NumPy arrays on a CPU and CuPy arrays on a GPU, and the model works with both. Each loop over
# the loader is an epoch, in a new order. A linear model that predicts the digit as a number is the simplest
# model that learns from a batch.

# %%
model = LinearModel()
losses = [model.step(images, labels) for _ in range(5) for images, labels in loader]
losses = np.array([float(loss) for loss in losses])  # the host waits for the device only here
print(f"first loss {losses[0]:.2f}, mean of the last epoch {losses[-40:].mean():.2f}")
assert len(losses) == 5 * 40
assert losses[-40:].mean() < 0.5 * losses[0]

# %%
figure, panel = plt.subplots(figsize=(7, 2.8), dpi=90, layout="constrained")
panel.plot(losses, color="#4c78a8", linewidth=1.2)
for epoch in range(1, 5):
    panel.axvline(40 * epoch, color="#bbbbbb", linewidth=0.8)
panel.axhline(digits.train.labels.var(), color="#f58518", linestyle="--")
panel.text(199, digits.train.labels.var() + 0.5, "always predicting the mean", color="#b35c00", ha="right")
panel.set(xlabel="step (lines: epochs)", ylabel="squared error", xlim=(0, 199), ylim=(0, None))
panel.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## What you hold is yours
#
# A batch you keep is never overwritten. The loader lends you the slot until your last view of it is gone,
# and delivers private copies once you hold many. This cell keeps a view of the first row of every batch of
# an epoch, and compares each with a copy made when the batch arrived.

# %%
kept, copied = [], []
for images, _ in loader:
    kept.append(images[:1])
    copied.append(images[:1].copy())
assert all(bool((view == copy).all()) for view, copy in zip(kept, copied, strict=True))
print(len(kept), "views kept, all unchanged")

# %% [markdown]
# ## Where the time went
#
# The consumer's time is `startup + wait + transfer + compute`, while the reader thread fetches and stages
# in parallel. `explain` tells you what bounds the loop.

# %%
stats = loader.stats()
assert stats.batches == 6 * 40
assert stats.slots > 8
assert abs(stats.startup + stats.wait + stats.transfer + stats.compute - stats.seconds) < 1e-9
print(f"{stats.batches} batches, {stats.nbytes / 1e6:.0f} MB, {stats.slots} slots")
for name in ("startup", "wait", "transfer", "compute", "fetch", "stage"):
    print(f"{name:8} {getattr(stats, name) * 1e3:6.1f} ms")
print()
print(loader.explain().summary)
