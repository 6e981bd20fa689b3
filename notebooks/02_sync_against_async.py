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
# # Synchronous against asynchronous
#
# This notebook trains twice. First, reading and computing take turns. Then a thread reads the next batches
# while the model computes on the current one. The result must be the same; only the time may differ.
#
# It uses the packaged sample of MNIST, or the full file if `GPULOADER_MNIST` names it.

# %%
import os
import time

import matplotlib.pyplot as plt
import numpy as np

import gpuloader
from gpuloader.demo.timeline import add_legend, choose_window, draw_run
from gpuloader.demo.training import LinearModel
from gpuloader.sources import mnist

digits = mnist.load(os.environ.get("GPULOADER_MNIST")).train
print(f"{len(digits):,} digits")

# %% [markdown]
# Reading a batch of digits from memory takes less than 0.1 ms, and so does a step of the linear model. That
# is too little for a second thread to hide, so the loader would soon read in the loop's own thread both ways.
# So each read here waits 2 ms, as for a disk, and each step 2 ms, as for a larger model.

# %%
WAIT = 0.002
EPOCHS = 3 if len(digits) < 10_000 else 1


def slowly(reader):
    """Return a reader that takes as long as a disk."""

    def read():
        for batch in reader():
            time.sleep(WAIT)
            yield batch

    return read


def train(asynchronous):
    """Return the losses, the loader, and the recorded spans."""
    loader = gpuloader.DataLoader.from_generator(capacity=8, return_list=True, use_double_buffer=asynchronous)
    loader.set_batch_generator(slowly(mnist.reader(digits, 100, seed=7)), places="cpu")
    model, losses = LinearModel(), []
    with gpuloader.trace() as spans:
        for _ in range(EPOCHS):
            for images, labels in loader:
                losses.append(model.step(images, labels))
                time.sleep(WAIT)
    return np.array(losses), loader, spans


runs = {
    "synchronous": train(asynchronous=False),
    "asynchronous": train(asynchronous=True),
}

# %% [markdown]
# ## The losses are equal, bit for bit
#
# The order of the digits is a function of the seed alone, and the arrays hold the same bytes.

# %%
(one, _, _), (other, _, _) = runs.values()
assert one.dtype == np.float32
assert one.tobytes() == other.tobytes()

print("step  synchronous  asynchronous  difference")
for step in range(0, len(one), len(one) // 6):
    print(f"{step:4}  {one[step]:11.6f}  {other[step]:12.6f}  {one[step] - other[step]:10g}")

# %% [markdown]
# ## The two timelines
#
# `gpuloader.trace` records what each thread does and when. Given a file name, it also writes the spans for
# Perfetto. The figure shows eight steps from the middle of the synchronous run, and as much time of the
# other.

# %%
figure, panels = plt.subplots(
    2, 1, figsize=(9, 3.6), dpi=90, layout="constrained", gridspec_kw={"height_ratios": [1, 2]}
)
width = 0
for panel, (name, (_, _, spans)) in zip(panels, runs.items(), strict=True):
    start, end = choose_window(spans, steps=8)
    width = width or end - start
    steps = draw_run(panel, spans, start, start + width)
    panel.set_title(f"{name}: {steps} steps", loc="left", fontsize=10)
panels[0].set_xlabel("")
add_legend(figure, spans)

# %% [markdown]
# In the synchronous run the consumer itself fetches, and all of that time is `wait`. In the asynchronous
# run the reader thread fetches, in its own row, and no longer delays the next step.

# %%
for name, (losses, loader, spans) in runs.items():
    stats = loader.stats()
    assert stats.batches == stats.steps == len(losses)
    assert {one.thread for one in spans if one.name == "fetch"} == {
        "MainThread" if name == "synchronous" else "gpuloader-reader"
    }
    print(
        f"{name:13} {stats.seconds / stats.steps * 1e3:5.2f} ms per step: "
        f"{stats.wait / stats.steps * 1e3:.2f} waiting, {stats.compute / stats.steps * 1e3:.2f} computing"
    )
synchronous, asynchronous = (loader.stats() for _, loader, _ in runs.values())
assert synchronous.wait > synchronous.steps * WAIT * 0.5  # the consumer waits for each read in full

# %%
print(runs["synchronous"][1].explain())
