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
# # The simulated device: watch a race being caught
#
# A copy to a GPU runs later than you request it, and so does the kernel that reads the copied data. Two
# events order them. `ready` is recorded after the copy, and the consumer waits for it. `released` is
# recorded after the last kernel, and the next copy into the same memory waits for it. A loop that forgets
# one of them sometimes computes on the wrong bytes.
#
# `gpuloader.testing` has a simulated device: a virtual clock, streams that run as late as they may, and a
# witness that raises `RaceError` whenever two uses of the same memory are not ordered, even if they
# happened to run in the right order this time. It runs anywhere, including in tests of your own loading
# code.

# %%
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np

from gpuloader import DataLoader
from gpuloader.demo.timeline import add_legend, draw_run
from gpuloader.testing import CustomPlace, RaceError, SimulatedDevice
from gpuloader.watch.meter import Span

COPY, KERNEL = 2.0, 3.0  # virtual milliseconds
BATCHES = 8


# %% [markdown]
# To draw what the device does, this subclass keeps a diary: it records an event after each copy and each
# kernel.


# %%
class Diary(SimulatedDevice):
    """A simulated device that records when each copy and kernel ran."""

    def __init__(self, seed=0):
        super().__init__("simulated:0", seed=seed, copy_time=lambda _: COPY)
        self.entries = []
        self.origin = self.event()
        self.record(self.origin, self.consumer_stream())

    def copy_async(self, target, source, nbytes, stream, offset=0):
        super().copy_async(target, source, nbytes, stream, offset)
        self._note("copy", "simulated:0 copies", stream, COPY)

    def launch(self, kernel, reads, stream=None, duration=0.0):
        super().launch(kernel, reads, stream, duration)
        if duration:
            self._note("compute", "simulated:0, kernels", stream or self.consumer_stream(), duration)

    def _note(self, name, row, stream, duration):
        done = self.event()
        self.record(done, stream)
        self.entries.append((name, row, done, duration))

    def read(self):
        """Finish all work and return its spans."""
        for *_, done, _ in self.entries:
            self.synchronize(done)
        ends = [self.elapsed(self.origin, done) for _, _, done, _ in self.entries]
        return [
            Span(name, row, round((end - duration) * 1e6), round(end * 1e6))
            for (name, row, _, duration), end in zip(self.entries, ends, strict=True)
        ]


# %% [markdown]
# ## A loop by hand
#
# Two regions on the device take turns, so that copies overlap with kernels. The correct loop has four lines
# that seem to do nothing.


# %%
def loop(device, *, wait_ready=True, wait_released=True):
    """Copy batches to a device by hand, and return the values that the kernels read."""
    copies, kernels = device.stream(), device.consumer_stream()
    regions = [
        SimpleNamespace(memory=device.alloc(32), ready=device.event(), released=device.event())
        for _ in range(2)
    ]
    seen = []
    for number in range(BATCHES):
        region = regions[number % 2]
        host = np.full(32, number, np.uint8)
        if wait_released:
            device.wait(copies, region.released)
        device.copy_async(region.memory, SimpleNamespace(bytes=host, address=host.ctypes.data), 32, copies)
        device.record(region.ready, copies)
        if wait_ready:
            device.wait(kernels, region.ready)
        device.launch(
            lambda memory=region.memory: seen.append(int(memory.bytes[0])), [region.memory], duration=KERNEL
        )
        device.record(region.released, kernels)
    return seen


right = Diary()
seen = loop(right)
by_hand = right.read()
print("kernels read batches", seen)
assert seen == list(range(BATCHES))

# %% [markdown]
# ## Without waiting for `ready`
#
# The kernel may run before the copy and read stale memory. The witness raises at the first batch, for every
# seed of the simulation's random choices: it checks the ordering, not what happened to run first.

# %%
for seed in range(20):
    try:
        loop(SimulatedDevice(seed=seed), wait_ready=False)
    except RaceError as error:
        message = str(error)
        continue
    raise AssertionError("the race went unnoticed")
print("RaceError:", message)
assert "read before the copy" in message

# %% [markdown]
# ## Without waiting for `released`
#
# The third copy overwrites the first batch, which the first kernel may still be reading.

# %%
for seed in range(20):
    try:
        loop(SimulatedDevice(seed=seed), wait_released=False)
    except RaceError as error:
        message = str(error)
        continue
    raise AssertionError("the race went unnoticed")
print("RaceError:", message)
assert "overwritten while a kernel may still read" in message

# %% [markdown]
# ## Refilling the host's memory too soon
#
# A third race needs no second stream: the host writes the next batch into a slot before the copy out of
# that slot has run. When the copy runs, it detects that the bytes have changed since it was requested.

# %%
device = SimulatedDevice()
host, memory = np.zeros(32, np.uint8), device.alloc(32)
slot = SimpleNamespace(bytes=host, address=host.ctypes.data)
copies = device.stream()
device.copy_async(memory, slot, 32, copies)
host[:] = 1  # too soon: nothing has waited for the copy
try:
    device.finish(copies)
except RaceError as error:
    print("RaceError:", error)
else:
    raise AssertionError("the race went unnoticed")

# %% [markdown]
# ## The loader
#
# The same device can be a place for the loader. Your loop waits for nothing; the loader records and waits
# where needed. This loop also keeps some batches, so that the loader cannot reuse their memory. No seed
# causes a race.


# %%
def load(device, keep=()):
    """Return the values that kernels read from each batch, and the values of the kept batches."""
    loader = DataLoader.from_generator(capacity=4)
    loader.set_batch_generator(
        lambda: ([np.full(32, number, np.uint8)] for number in range(BATCHES)), places=CustomPlace(device)
    )
    seen, kept = [], {}
    for number, (batch,) in enumerate(loader):
        seen.append(batch.launch_read(duration=KERNEL))  # a list that the kernel fills when it runs
        if number in keep:
            kept[number] = batch
    device.finish(device.consumer_stream())
    return [int(saw[0][0]) for saw in seen], {n: int(np.asarray(batch)[0]) for n, batch in kept.items()}


for seed in range(20):
    seen, kept = load(SimulatedDevice(seed=seed), keep={0, 1, 2, 5})
    assert seen == list(range(BATCHES))
    assert kept == {0: 0, 1: 1, 2: 2, 5: 5}
print("20 seeds, no race")

# %% [markdown]
# ## On the virtual clock
#
# Both by hand and with the loader, copies overlap with kernels, and each kernel starts after its copy. No
# schedule is faster: one copy, then kernels without a pause.

# %%
ours = Diary()
load(ours)
timelines = {"by hand, correctly ordered": by_hand, "the loader": ours.read()}

figure, panels = plt.subplots(2, 1, figsize=(9, 3.6), dpi=90, layout="constrained", sharex=True)
for panel, (name, spans) in zip(panels, timelines.items(), strict=True):
    draw_run(panel, spans, 0, round((COPY + BATCHES * KERNEL) * 1e6))
    panel.set_title(name, loc="left", fontsize=10)
    for kind in ("copy", "compute"):
        for number, span in enumerate(sorted(one for one in spans if one.name == kind)):
            row = int(kind == "copy")
            middle = (span.start + span.end) * 5e-7
            panel.text(middle, row, number, color="white" if row else "black", ha="center", va="center")
panels[0].set_xlabel("")
panels[1].set_xlabel("virtual milliseconds")
add_legend(figure, spans)

for spans in timelines.values():
    copies = sorted((one for one in spans if one.name == "copy"), key=lambda one: one.start)
    kernels = sorted((one for one in spans if one.name == "compute"), key=lambda one: one.start)
    assert len(copies) == len(kernels) == BATCHES
    assert all(copy.end <= kernel.start for copy, kernel in zip(copies, kernels, strict=True))
    assert kernels[-1].end == round((COPY + BATCHES * KERNEL) * 1e6)
