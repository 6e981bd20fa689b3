"""What gpuloader does otherwise than PyTorch, on purpose: for each key, PyTorch's way, ours, and the reason.

Each entry is named by the cases in which it shows. `docs/coming-from-torch.md` lists them all.
"""

DIFFERENCES = {
    "seeds-are-drawn-once": (
        "torch.manual_seed before any epoch determines its order",
        "the global seed is read once, at the first epoch; later epochs follow from it",
        "an order that is a function of seed and epoch can be resumed",
    ),
    "errors-have-a-cause": (
        "a dataset's exception is raised itself, or an exception of its class made from its text",
        "a SampleError, which is a RuntimeError; its cause is the exception",
        "it names the sample, and any exception can be its cause",
    ),
    "later-samples-match-the-first": (
        "integers become floats if a later sample of the batch has a float",
        "a SampleError",
        "samples are written into the batch as they arrive",
    ),
    "objects-are-collected": (
        "a TypeError for samples that are neither numbers, text nor containers; any sequence is a container",
        "the batch is the list of them, also of ranges, deques and other sequences that are neither list "
        "nor tuple",
        "a dataset may return anything, and needs no collate_fn for it",
    ),
    "text-is-a-list": (
        "a batch of text is a list in dicts and a tuple in tuples and lists",
        "it is always a list",
        "one type for one thing",
    ),
    "free-workers-take-the-next-batch": (
        "worker k loads batches k, k + n, ...",
        "a free worker loads the next batch",
        "a slow sample delays one batch instead of every n-th",
    ),
    "an-error-ends-the-epoch": (
        "the epoch goes on with the next batch after an error",
        "the epoch is over",
        "an epoch that lost samples is not an epoch",
    ),
    "no-descriptors-per-tensor": (
        "every tensor from a worker takes a file descriptor, and a RuntimeError says when they run out",
        "batches lie in memory that was mapped before, so any number can be kept",
        "nothing runs out",
    ),
    "options-without-workers": (
        "timeout, prefetch_factor and multiprocessing_context are errors without workers",
        "they are ignored",
        "num_workers=0 is then the only change when debugging",
    ),
    "bools-are-bools": (
        "shuffle=3 means True",
        "a TypeError",
        "a number in such a place is a mistake in the order of arguments",
    ),
    "no-warning-of-workers": (
        "a warning of more workers than processors",
        "no warning; explain() says what limits the loop",
        "more workers pay if the dataset waits for a disk or a network",
    ),
    "chained-arrays-match": (
        "a batch of a ConcatDataset of float32 and float64 arrays has the wider dtype",
        "a SampleError when the loader is made, which names both datasets",
        "samples are written into the batch as they arrive",
    ),
    "read-once": (
        "the second epoch over a generator object is empty",
        "a ReaderError",
        "a run that trains on nothing should not look like one that trains",
    ),
    "no-warning-of-more-items": (
        "a warning if an iterable dataset yields more items than its length",
        "no warning",
        "the length is the dataset's own affair",
    ),
    "worker-seeds": (
        "the global generators of a worker are seeded once, before worker_init_fn, which may seed them anew",
        "they are seeded before each batch of a map-style dataset, after worker_init_fn",
        "random numbers do not depend on the number of workers",
    ),
    "arrays-need-no-workers": (
        "num_workers processes load a TensorDataset, and run worker_init_fn",
        "the loader gathers its batches itself; no worker starts, and worker_init_fn is not called",
        "one take per field is faster than to ask a process for it",
    ),
    "batches-have-no-gradient": (
        "a batch of tensors that require a gradient leads back to them",
        "it has their values, with a warning; a collate_fn's results lead back, without worker processes",
        "batches lie in memory that is filled by workers and used again",
    ),
    "arrays-become-tensors": (
        "NumPy arrays that a collate_fn returns stay arrays",
        "they become tensors, as arrays in samples do",
        "a batch lands on a place as a whole",
    ),
}
