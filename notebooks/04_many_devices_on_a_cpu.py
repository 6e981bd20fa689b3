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
# # Many devices, on a CPU
#
# With several places, a step is a list with one entry per place. Four places on a CPU behave like four
# GPUs, so this notebook needs no GPU. It shows how batches are distributed or split, what happens to a
# remainder, and that training on the parts equals training on the whole.

# %%
import matplotlib.pyplot as plt
import numpy as np

from gpuloader import DataLoader, TensorDataset, cpu_places
from gpuloader.sources import mnist

PLACES = cpu_places(4)
COLOURS = ["#4c78a8", "#f58518", "#72b7b2", "#54417e"]

# %% [markdown]
# ## Batches in turn, or shards
#
# `split="batches"` sends consecutive batches to consecutive places, so a step takes four batches.
# `split="shards"` splits each batch into four equal parts, so a step is one batch for any number of places.

# %%
dataset = TensorDataset(np.arange(48))
options = {"batch_size": 8, "shuffle": True, "seed": 5}


def values(entry):
    """Return the only field of one place's batch."""
    return np.asarray(entry[0])


alone = [values(batch) for batch in DataLoader(dataset, places="cpu", **options)]
dealt = {
    split: [
        [values(entry) for entry in step]
        for step in DataLoader(dataset, places=PLACES, split=split, **options)
    ]
    for split in ("batches", "shards")
}

flat = [part for step in dealt["batches"] for part in step]
assert all((part == batch).all() for part, batch in zip(flat, alone, strict=True))
assert [len(step) for step in dealt["batches"]] == [4, 2]  # six batches: the last step is incomplete

assert [[len(part) for part in step] for step in dealt["shards"]] == [[2, 2, 2, 2]] * 6
assert all((np.concatenate(step) == batch).all() for step, batch in zip(dealt["shards"], alone, strict=True))

# %% [markdown]
# Both keep the order of a single place. Each cell is a sample with its index, each color a place, and each
# row a step.


# %%
def show(panel, steps, title, masks=None):
    """Draw each step as a row of samples, colored by place."""
    most = max(len(part) for step in steps for part in step)
    for row, step in enumerate(steps):
        for place, part in enumerate(step):
            for at, value in enumerate(part):
                left = place * (most + 0.4) + at
                counts = masks is None or masks[row][place][at]
                panel.barh(
                    row, 0.9, 0.8, left, color=COLOURS[place] if counts else "white", edgecolor=COLOURS[place]
                )
                panel.text(
                    left + 0.45, row, value, ha="center", va="center", fontsize=7,
                    color="white" if counts and place in (0, 3) else "black",
                )  # fmt: skip
    panel.set_title(title, loc="left", fontsize=10)
    panel.set_yticks(range(len(steps)), [f"step {row}" for row in range(len(steps))])
    panel.set_ylim(len(steps) - 0.4, -0.6)
    panel.set_xticks([])
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0)


def name_places(figure):
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS]
    names = [f"place {n}" for n in range(4)]
    figure.legend(handles, names, loc="outside upper right", ncols=4, frameon=False)


figure, panels = plt.subplots(
    2, 1, figsize=(9, 3.8), dpi=90, layout="constrained", gridspec_kw={"height_ratios": [2, 6]}
)
for panel, (split, steps) in zip(panels, dealt.items(), strict=True):
    show(panel, steps, f'split="{split}"')
    panel.set_xlim(0, 33.4)
name_places(figure)

# %% [markdown]
# ## Batches that do not divide evenly
#
# With 21 samples in batches of 8, the last batch holds 5. Five samples do not divide evenly over 4 places,
# which is an error unless you choose another `uneven`. `"drop"` drops the excess. `"pad"` repeats the
# last sample of a part that is too short, and adds a mask as the last entry. Sums over the unmasked samples
# are unchanged.

# %%
few = TensorDataset(np.arange(21))
shards = {"places": PLACES, "batch_size": 8, "split": "shards"}

try:
    list(DataLoader(few, **shards))
except ValueError as error:
    print(error)
else:
    raise AssertionError("surplus samples went unnoticed")

dropped = [[values(entry) for entry in step] for step in DataLoader(few, uneven="drop", **shards)]
padded, masks = [], []
for step in DataLoader(few, uneven="pad", **shards):
    padded.append([np.asarray(numbers) for numbers, _ in step])
    masks.append([np.asarray(mask) for _, mask in step])

assert np.concatenate([np.concatenate(step) for step in dropped]).tolist() == list(range(20))
everything = np.concatenate([part for step in padded for part in step])
counting = np.concatenate([mask for step in masks for mask in step]).astype(bool)
assert everything[counting].tolist() == list(range(21))

# %%
figure, panels = plt.subplots(2, 1, figsize=(9, 2.8), dpi=90, layout="constrained")
show(panels[0], dropped, 'uneven="drop"')
show(panels[1], padded, 'uneven="pad" (hollow: repeated, the mask is 0)', masks)
name_places(figure)

# %% [markdown]
# ## Training on four places
#
# This is data-parallel training by hand. Each place computes the gradient of its part, the sums are added,
# and one update moves the parameters. The mask excludes the repeated samples. For comparison, the same
# model trains on one place.

# %%
digits = mnist.sample().train
train = TensorDataset(digits.images[:3990], digits.labels[:3990].astype(np.float32)[:, None])
common = {"batch_size": 100, "shuffle": True, "seed": 2}
RATE = 0.001


def slopes(images, labels, weight, counts):
    """Return sums over the unmasked samples: squared errors, and their gradient."""
    errors = (images @ weight - labels) * counts
    return float((errors**2).sum(dtype=np.float64)), 2 * images.T.astype(np.float64) @ errors


def fit(steps):
    """Train on steps, each a list of (images, labels, mask); return the losses and parameters."""
    weight, losses = np.zeros((784, 1)), []
    for step in steps:
        parts = [slopes(images, labels, weight, mask[:, None]) for images, labels, mask in step]
        count = sum(int(mask.sum()) for _, _, mask in step)
        losses.append(sum(loss for loss, _ in parts) / count)
        weight -= RATE * sum(gradient for _, gradient in parts) / count
    return np.array(losses), weight


one, one_weight = fit(
    [(images, labels, np.ones(len(images)))] for images, labels in DataLoader(train, places="cpu", **common)
)
four, four_weight = fit(DataLoader(train, places=PLACES, split="shards", uneven="pad", **common))

assert len(one) == len(four) == 40  # the last batch of 90 is padded to 4 x 23
print(f"largest difference between losses: {np.abs(one - four).max():.1e}")
assert np.allclose(one, four, rtol=1e-9)
assert np.allclose(one_weight, four_weight, rtol=1e-9)

# %% [markdown]
# The samples are the same, bit for bit. The losses agree except for rounding, because the sums were added
# in another order.

# %%
print("step  one place  four places  differ by more than 1e-9")
for step in range(0, 40, 6):
    print(f"{step:4}  {one[step]:9.5f}  {four[step]:11.5f}  {abs(one[step] - four[step]) > 1e-9!s:>24}")
