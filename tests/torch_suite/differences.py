"""What gpuloader does otherwise than PyTorch, on purpose: for each key, PyTorch's way, ours, and the reason.

Each entry is named by the cases in which it shows. `docs/coming-from-torch.md` lists them all.
"""

DIFFERENCES = {
    "objects-are-collected": (
        "a TypeError for samples that are neither numbers, text nor containers",
        "the batch is the list of them",
        "a dataset may return anything, and needs no collate_fn for it",
    ),
    "an-error-ends-a-stream": (
        "after an error in one worker of an iterable dataset, the other workers' batches follow",
        "the epoch is over",
        "the failed worker's remaining items are lost, and nothing tells how many",
    ),
    "no-descriptors-per-tensor": (
        "every tensor from a worker takes a file descriptor, and a RuntimeError says when they run out",
        "batches lie in memory that is already mapped, so you can keep any number",
        "training can't run out of descriptors",
    ),
    "options-without-workers": (
        "timeout, prefetch_factor and multiprocessing_context are errors without workers",
        "they are ignored",
        "num_workers=0 is then the only change when debugging",
    ),
    "bools-are-bools": (
        "shuffle=3 means True",
        "a TypeError",
        "a number there means that arguments are in the wrong order",
    ),
    "no-warning-of-workers": (
        "a warning of more workers than processors",
        "no warning; explain() says what limits the loop",
        "extra workers help a dataset that waits for a disk or a network",
    ),
    "read-once": (
        "the second epoch over a generator object is empty",
        "a ReaderError",
        "training on nothing should not look like training",
    ),
    "no-data-pipes-in-workers": (
        "the workers of a data pipe each get a shard of it, and one seed for its shuffles",
        "a TypeError",
        "PyTorch has stopped developing data pipes, and each worker would read all of one",
    ),
    "no-warning-of-more-items": (
        "a warning if an iterable dataset yields more items than its length",
        "no warning",
        "the length is the dataset's own affair",
    ),
    "arrays-need-no-workers": (
        "num_workers processes load a TensorDataset, and run worker_init_fn",
        "the loader gathers its batches itself; no worker starts, and worker_init_fn is not called",
        "one indexing call per field is faster than asking a process",
    ),
    "batches-have-no-gradient": (
        "a batch of tensors that require a gradient leads back to them",
        "it has their values, with a warning; a collate_fn's results lead back, without worker processes",
        "batches lie in memory that is filled by workers and used again",
    ),
    "batches-do-not-grow": (
        "resize_ enlarges a batch, unless a worker made it, and a tensor of the dataset",
        "a RuntimeError of PyTorch's: storage that is not resizable; not for what a collate_fn returns",
        "batches lie in the loader's memory; copy a batch into a tensor of the larger size",
    ),
    "large-samples-are-copied-early": (
        "a dataset that returns one buffer, which it overwrites for each sample, fills a batch with the last "
        "one",
        "the same up to 1 MiB per batch; in larger batches, earlier samples may be there as they were",
        "large samples are copied a few at a time, while the processor's cache has them",
    ),
    "growth-waits-for-an-epoch": (
        "if a dataset grows during an epoch without workers, a RandomSampler draws a few more indices at its "
        "end",
        "the epoch has the indices that there were at its beginning",
        "an epoch can be resumed only if its order is known",
    ),
    "iterators-are-independent": (
        "two iterators of a loader with persistent_workers are one: iter() begins its epoch again",
        "each has an epoch of its own",
        "two loops over one loader do not take each other's batches",
    ),
    "an-interruption-ends-an-epoch": (
        "after a KeyboardInterrupt or SystemExit in the dataset, without workers, the iterator continues "
        "with the next batch",
        "it raises a LoaderError",
        "a batch would be missing; state_dict() resumes with it",
    ),
    "more-is-delivered": (
        "an error for arrays of the other byte order or with negative strides, np.uint64 and complex "
        "numbers, numbers after a tensor, __getitems__ that returns one tensor, and numbers under "
        "torch.device('meta')",
        "they are delivered",
        "their values fit into a batch",
    ),
}
