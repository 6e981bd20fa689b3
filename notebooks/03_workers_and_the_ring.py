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
# # Workers and the ring
#
# A loader has a fixed number of slots, which circulate: free, filled by a worker, lent to you, free again.
# This notebook shows who fills the slots, which ones are in use, and what happens when you keep batches.

# %%
import os
import time

import matplotlib.pyplot as plt
import numpy as np

import gpuloader
from gpuloader import DataLoader, Dataset
from gpuloader.demo.timeline import add_legend, choose_window, draw_run

# %% [markdown]
# ## Who fills the slots
#
# Each sample contains the ID of the process that made it, and takes a millisecond, like decoding a small
# image.


# %%
class Pictures(Dataset):
    """Fake pictures, each of which takes a millisecond to read."""

    def __len__(self):
        return 480

    def __getitem__(self, index):
        time.sleep(0.001)
        return np.full((32, 32), index, np.float32), os.getpid()


def load(**options):
    return DataLoader(Pictures(), places="cpu", batch_size=10, **options)


# %% [markdown]
# Workers are processes. For samples that wait or release the GIL, they can be threads. The batches are the
# same, in the same order.

# %%
ways = {
    "no workers": {},
    "2 threads": {"num_workers": 2, "worker_type": "thread"},
    "2 processes": {"num_workers": 2},
}
traces, makers, firsts = {}, {}, {}
for name, options in ways.items():
    with gpuloader.trace() as spans:
        batches = [(images[:, 0, 0].copy(), pids.copy()) for images, pids in load(**options)]
    traces[name] = spans
    firsts[name] = np.concatenate([images for images, _ in batches])
    makers[name] = {int(pid) for _, pids in batches for pid in pids}
    print(f"{name:12} samples made in {len(makers[name])} process(es)")

assert all((order == np.arange(480)).all() for order in firsts.values())
assert makers["no workers"] == makers["2 threads"] == {os.getpid()}
assert len(makers["2 processes"]) == 2
assert os.getpid() not in makers["2 processes"]

# %% [markdown]
# Threads divide each batch between them. Each process takes a whole batch and writes every sample to the
# place where you will read it. A message to a process and its answer take about 44 bytes: no array is ever
# sent.

# %%
figure, panels = plt.subplots(
    3, 1, figsize=(9, 5), dpi=90, layout="constrained", gridspec_kw={"height_ratios": [1, 3, 3]}
)
width = 0
for panel, (name, spans) in zip(panels, traces.items(), strict=True):
    start, end = choose_window(spans, steps=4)
    width = width or end - start
    draw_run(panel, spans, start, start + width)
    panel.set_title(name, loc="left", fontsize=10)
    panel.set_xlabel("")
panels[-1].set_xlabel("milliseconds")
add_legend(figure, [one for spans in traces.values() for one in spans])

rows = {name: {one.thread for one in spans if one.name == "fetch"} for name, spans in traces.items()}
assert rows["no workers"] <= {"MainThread", "gpuloader-reader"}
assert rows["2 threads"] == rows["2 processes"] == {"gpuloader-worker-0", "gpuloader-worker-1"}

# %% [markdown]
# ## The slots circulate
#
# On a CPU place the loader lends you the slot itself, so an array's address identifies its slot. A loop
# that drops each batch sees the same few slots again and again: the loader first refills the slot that came
# back last, because it is still in the processor's cache. A loop that keeps every batch borrows some slots
# and then receives private copies. The remaining slots keep circulating, and no worker has to wait for you.

# %%
STEPS = 30


def watch(keep):
    """Return the address of each batch, the slots in use at each step, and the number of slots."""
    loader = load(num_workers=2, worker_type="thread")
    addresses, in_use, kept = [], [], []
    for step, (images, _) in enumerate(loader):
        addresses.append(images.ctypes.data)
        in_use.append(loader.stats().slots_in_use)
        if keep:
            kept.append(images)
        if step + 1 == STEPS:
            break
    slots = loader.stats().slots
    assert all((images[:, 0, 0] == np.arange(10) + 10 * n).all() for n, images in enumerate(kept))
    return np.array(addresses), in_use, slots


dropped, kept = watch(keep=False), watch(keep=True)
for name, (addresses, in_use, slots) in {"dropped": dropped, "kept": kept}.items():
    print(f"{name:7} {len(set(addresses))} different addresses in {STEPS} steps; {slots} slots, ", end="")
    print(f"at most {max(in_use)} of them in use")

assert len(set(dropped[0])) <= dropped[2]  # slots only
assert len(set(kept[0])) == STEPS  # every batch has its own memory ...
assert kept[2] == dropped[2]  # ... yet the number of slots is the same

# %% [markdown]
# Which of the kept batches are slots, and which are copies? Slots lie in one mapping, at equal distances.
# On a CPU place you may hold three of them: loops usually hold two batches at once, and one is spare.

# %%
nbytes = 10 * 32 * 32 * 4
slot = nbytes + 256  # fields begin at multiples of 256 bytes: the pictures, then 10 numbers
addresses = np.sort(dropped[0])
assert ((addresses - addresses[0]) % slot == 0).all()
distances = np.abs(kept[0] - kept[0][0])
lent = [step for step in range(STEPS) if distances[step] % slot == 0 and distances[step] < slot * kept[2]]
print("steps whose batches are lent slots:", lent)
assert lent[:3] == [0, 1, 2]

# %%
figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), dpi=90, layout="constrained", sharey=True)
for panel, (addresses, _, _), title in zip(panels, (dropped, kept), ("dropped", "kept"), strict=True):
    numbers = {address: number for number, address in enumerate(dict.fromkeys(addresses))}
    heights = np.array([numbers[address] for address in addresses])
    private = np.isin(np.arange(STEPS), lent, invert=True) & (title == "kept")
    panel.plot(np.flatnonzero(~private), heights[~private], "o", color="#4c78a8", label="lent slot")
    panel.plot(
        np.flatnonzero(private), heights[private], "D", mfc="none", mec="#d06a00", label="private copy"
    )
    if title == "dropped":
        panel.set_ylabel("address,\nin order of appearance")
    else:
        panel.legend(frameon=False)
    panel.set_title(f"each batch {title}", loc="left", fontsize=10)
    panel.set_xlabel("step")
    panel.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## How many workers?
#
# `num_workers='auto'` starts with one worker, doubles while throughput improves, and then keeps the best
# number. The contents of the batches do not depend on it. These samples wait, so they need threads, and
# more of them than there are cores.


# %%
class Remote(Dataset):
    """Each sample waits two milliseconds, as for a network."""

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.002)
        return np.full((32, 32), index, np.float32)


loader = DataLoader(Remote(), places="cpu", batch_size=8, num_workers="auto", worker_type="thread")
numbers, times, more = [], [time.perf_counter()], 60
for images in loader:
    numbers.extend(images[:, 0, 0])
    times.append(time.perf_counter())
    if "Chosen" in str(loader.explain()):
        more -= 1  # a few more steps, to see the effect
    if not more:
        break
assert numbers == list(range(len(numbers)))

# %% [markdown]
# `explain` tells you what the loader tried, what it chose, and what bounds the loop now.

# %%
explanation = loader.explain()
print(explanation.summary, *explanation.notes, sep="\n")
assert "2 workers" in str(explanation)

# %%
figure, panel = plt.subplots(figsize=(7, 2.8), dpi=90, layout="constrained")
moments, every = np.array(times) - times[0], 6
rates = every / (moments[every::every] - moments[:-every:every])
panel.step(moments[every::every], rates, where="pre", color="#4c78a8", linewidth=1.5)
panel.set(xlabel="seconds since the loop began", ylabel="steps per second", ylim=(0, None), xlim=(0, None))
panel.spines[["top", "right"]].set_visible(False)
