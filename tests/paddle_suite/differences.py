"""What gpuloader does otherwise than Paddle, on purpose: for each key, what Paddle does, what we do, and why.

Each entry is named by the cases in which it shows. `docs/coming-from-paddle.md` has them all, in this order.
"""

DIFFERENCES = {
    "random-orders": (
        "`np.random.seed(0)` makes a `RandomSampler` yield `np.random.permutation`",
        "the order is repeatable, but different; see [Random orders](#random-orders)",
        "an order that depends only on seed and epoch can be resumed and divided among ranks",
    ),
    "oversampling": (
        "`RandomSampler(dataset, num_samples=120)` for 100 samples is an error",
        "it draws a second permutation for the rest",
        "as in PyTorch",
    ),
    "empty-subsets": ("`SubsetRandomSampler([])` is an error", "it is empty", "as in PyTorch"),
    "weights-are-a-list": (
        "a `WeightedRandomSampler` over a list of weights has no length",
        "its length is `num_samples`",
        "the error helps nobody",
    ),
    "iterables-can-be-listed": (
        "`list(iterable_dataset)` is an error, because `list` asks for a length",
        "it lists the items",
        "the error for a missing length is also a `TypeError`, which `list` expects",
    ),
    "nothing-is-dropped": (
        "a loader over a dataset drops a last step that lacks a batch for a place, regardless of `drop_last`",
        "it delivers the step with fewer entries, unless `drop_last` is True",
        "nothing is dropped unless you ask for it",
    ),
    "ended-is-ended": (
        "`next` after the end of an epoch may be a `RuntimeError`",
        "`StopIteration`, every time",
        "Python defines iterators so",
    ),
    "next-of-a-call": (
        "`next(loader())` of a loader over a reader is an `AttributeError`",
        "it is the first step of a new epoch",
        "it works for a loader over a dataset",
    ),
    "order-is-kept": (
        "`keep_data_loader_order(False)` lets batches overtake each other",
        "batches arrive in the reader's order; the function does not exist",
        "every run has the same order",
    ),
    "errors-reach-the-consumer": (
        'a reader, mapper or dataset that raises: a hang, or "Blocking queue is killed"',
        "the exception itself, or a `SampleError` with the exception as its cause",
        "you see what is wrong",
    ),
    "nothing-hangs": (
        "a batch taken before `start()`, `start()` twice or without a source, and persistent workers over an "
        "iterable dataset: a hang",
        "`Misuse`, immediately; the workers work",
        "nothing hangs",
    ),
    "no-threads": ("`xmap_readers` with `process_num=0` hangs", "`ValueError`", "nothing hangs"),
    "widths-are-checked": (
        "a value of another width than its feed passes, if it has as many dimensions",
        "an error that names sample and field",
        "a network would fail later, or learn from misplaced numbers",
    ),
    "sizes-are-whole": (
        "`batch(reader, 2.7)` makes batches of 2, and `'2'` and `True` are sizes",
        "`ValueError`; 2.0 is a size",
        "a fraction is a mistake in a computed size",
    ),
    "none-is-an-item": (
        "`compose` takes None for the end of a reader; reader processes refuse None and arrays",
        "items may be anything",
        "the values of items are yours",
    ),
    "cache-reads-late": (
        "`cache` reads everything when you call it",
        "it reads everything on first use",
        "building a reader costs nothing, and a failed read is repeated",
    ),
    "classes-stay": (
        "a named tuple becomes a list, an `OrderedDict` a dict, and a tuple from a `collate_fn` a list",
        "they keep their classes",
        "as in PyTorch",
    ),
    "samples-are-arrays": (
        "a sample of a `TensorDataset` consists of tensors",
        'it consists of NumPy arrays; batches are tensors with `output="paddle"`',
        "a loader gathers a batch of them at once",
    ),
    "indices-are-an-array": (
        "the `indices` of a part of `random_split` are a list",
        "they are an array; `indices.tolist()` is the list",
        "a list takes several times the memory",
    ),
    "no-empty-places": ("`cpu_places(0)` is an empty list", "`ValueError`", "a loader needs a place"),
    "typed-errors": (
        "a missing reader is an `AssertionError`",
        "`ReaderError`, which is a `TypeError`",
        "all misuse of readers has one type",
    ),
}
