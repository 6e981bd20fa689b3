# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # From a reader to a training step
#
# A reader is a function without arguments that gives an iterable. A loader runs it in a thread, writes each
# batch once into a slot, and hands it over on the place you name. The same cells run on a CPU and on a GPU.

# %%
import gpuloader
from gpuloader.demo.linear import LinearModel
from gpuloader.sources import mnist

digits = mnist.sample()
digits.train.images.shape, digits.train.labels[:5]

# %% [markdown]
# ## A reader
#
# `mnist.reader` shuffles and yields ready batches; any generator function of yours does as well.

# %%
reader = mnist.reader(digits.train, batch_size=100, seed=1)
images, labels = next(iter(reader()))
images.shape, labels.shape

# %% [markdown]
# ## A loader
#
# `capacity` batches wait in its queue. Without a feed list a step is the flat list of arrays.

# %%
loader = gpuloader.DataLoader.from_generator(capacity=8, return_list=True)
loader.set_batch_generator(reader)  # places=... ; the default is the first GPU, else the CPU

# %% [markdown]
# ## A step
#
# The arrays are NumPy's on a CPU and CuPy's on a GPU; the model computes with whichever it is given.

# %%
model = LinearModel()
losses = [float(model.step(images, labels)) for images, labels in loader]
print(f"first loss {losses[0]:.2f}, mean of the last ten {sum(losses[-10:]) / 10:.2f}")
assert losses[-1] < losses[0]

# %% [markdown]
# ## What you hold is yours
#
# A batch you keep is never overwritten: the loader lends you the slot until your last view of it is gone, and
# delivers private copies once you hold many.

# %%
kept = [images[:1] for images, _ in loader]
again = [images[:1].copy() for images, _ in loader]
print(len(kept), "batches kept, each still its own:", len({float(image.sum()) for image in kept}) > 30)

# %% [markdown]
# ## Where the time went

# %%
stats = loader.stats()
print(f"{stats.batches} batches, {stats.nbytes / 1e6:.0f} MB")
for name in ("fetch", "stage", "wait", "transfer"):
    print(f"{name:8} {getattr(stats, name) * 1e3:6.1f} ms")
