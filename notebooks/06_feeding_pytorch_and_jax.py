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
# # Feeding PyTorch and JAX
#
# `output='torch'` or `'jax'` delivers batches as that framework's tensors, in the memory that the loader
# wrote, without a second copy. If a framework is not installed, its cells do nothing.

# %%
import importlib.util

import matplotlib.pyplot as plt
import numpy as np

from gpuloader import DataLoader, TensorDataset
from gpuloader.sources import mnist

HAVE = {name: importlib.util.find_spec(name) is not None for name in ("torch", "jax")}
for name, there in HAVE.items():
    print(name, "is installed" if there else f"is not installed; its cells do nothing (pip install {name})")

digits = mnist.sample().train
dataset = TensorDataset(digits.images, digits.labels.astype(np.float32)[:, None])
options = {"places": "cpu", "batch_size": 100, "shuffle": True, "seed": 4}

# %% [markdown]
# ## Where a batch lies
#
# All fields of a batch lie in one slot, one after the other, each at a multiple of 256 bytes. So the
# address of the labels follows from that of the images, and the same few addresses recur. The pointers that
# the frameworks themselves report show both.

# %%
POINTERS = {
    "numpy": lambda array: array.ctypes.data,
    "torch": lambda tensor: tensor.data_ptr(),
    "jax": lambda array: array.unsafe_buffer_pointer(),
}
IMAGES = 100 * 784 * 4
BEHIND = -(-IMAGES // 256) * 256  # where the labels begin

pointers = {}
for output in ["numpy", *(name for name in HAVE if HAVE[name])]:
    loader = DataLoader(dataset, output=output, **options)
    places = []
    for images, labels in loader:
        places.append((POINTERS[output](images), POINTERS[output](labels)))
    slots = loader.stats().slots
    starts = {image for image, _ in places}
    assert {label - image for image, label in places} == {BEHIND}  # one slot, two fields
    assert len(starts) <= slots < len(places) == 40  # and the slots circulate
    pointers[output] = places
    print(f"{output:5} {type(images).__module__.split('.')[0]:6} 40 batches at {len(starts)} addresses")

# %% [markdown]
# The figure shows the first twelve batches of each framework in memory. Wide bars are images, tips are
# labels.

# %%
figure, panels = plt.subplots(
    1, len(pointers), figsize=(9, 2.9), dpi=90, layout="constrained", sharey=True, squeeze=False
)
panels[0, 0].set(ylabel="step", ylim=(11.6, -0.6))
for panel, (output, places) in zip(panels[0], pointers.items(), strict=True):
    first = min(image for image, _ in places)
    for step, (image, label) in enumerate(places[:12]):
        panel.barh(step, IMAGES / 1024, 0.8, (image - first) / 1024, color="#4c78a8")
        panel.barh(step, 8, 0.8, (label - first) / 1024, color="#f58518")
    panel.set_title(f'output="{output}"', loc="left", fontsize=10)
    panel.set_xlabel("KiB from the first slot")
    panel.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## The same training in each framework
#
# Each trains one linear layer on the squared error: NumPy with an explicit gradient, the others with
# automatic differentiation. On a GPU the loader makes the framework's own stream wait for the copy, so only
# the place below would change.

# %%
RATE = 0.001
losses = {"numpy": []}
weight = np.zeros((784, 1), np.float32)
for images, labels in DataLoader(dataset, **options):
    errors = images @ weight - labels
    losses["numpy"].append(float((errors**2).mean()))
    weight -= RATE * 2 / len(errors) * (images.T @ errors)

# %%
if HAVE["torch"]:
    import torch

    torch.set_num_threads(1)
    layer = torch.nn.Linear(784, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=RATE)
    losses["torch"] = []
    for images, labels in DataLoader(dataset, output="torch", **options):
        loss = torch.nn.functional.mse_loss(layer(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses["torch"].append(loss.item())
    assert np.allclose(losses["torch"], losses["numpy"], rtol=1e-3)

# %%
if HAVE["jax"]:
    import jax

    @jax.jit
    def step(weight, images, labels):
        """Return the updated parameters, and the loss before the update."""

        def squares(weight):
            return ((images @ weight - labels) ** 2).mean()

        loss, slope = jax.value_and_grad(squares)(weight)
        return weight - RATE * slope, loss

    parameters, losses["jax"] = jax.numpy.zeros((784, 1)), []
    for images, labels in DataLoader(dataset, output="jax", **options):
        parameters, loss = step(parameters, images, labels)
        losses["jax"].append(loss)  # no float() here: it would wait for the step
    losses["jax"] = [float(loss) for loss in losses["jax"]]
    assert np.allclose(losses["jax"], losses["numpy"], rtol=1e-3)

# %%
print("step", *(f"{name:>10}" for name in losses))
for step in range(0, 40, 6):
    print(f"{step:4}", *(f"{curve[step]:10.5f}" for curve in losses.values()))

# %% [markdown]
# ## A tensor holds its slot
#
# A batch you hold is never overwritten, in any framework. The loader lends you the slot until the tensor,
# and everything that shares its memory, is gone.

# %%
for output in pointers:
    loader = DataLoader(dataset, output=output, **options)
    kept = [images[:2] for images, _ in loader]
    again = [np.array(images[:2]) for images, _ in DataLoader(dataset, **options)]
    assert all((np.asarray(view) == copy).all() for view, copy in zip(kept, again, strict=True))
print("kept in", ", ".join(pointers), "and never overwritten")
