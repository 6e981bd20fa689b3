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
}
