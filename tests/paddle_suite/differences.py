"""What gpuloader does otherwise than Paddle, on purpose: for each key, what Paddle does, what we do, and why.

Each entry is named by the cases in which it shows. `docs/coming-from-paddle.md` lists them all.
"""

DIFFERENCES = {
    "none-is-an-item": (
        "compose takes None for the end of a reader; reader processes refuse None and arrays",
        "items may be anything",
        "an item's value is the user's business",
    ),
    "cache-reads-late": (
        "cache reads everything when it is called",
        "cache reads everything on first use",
        "decorating costs nothing, and a read that fails is repeated",
    ),
    "sizes-are-whole": (
        "batch(reader, 2.7) makes batches of 2, and '2' and True are sizes",
        "a ValueError; 2.0 is a size",
        "a fraction is a mistake in a computed size",
    ),
    "errors-reach-the-consumer": (
        "'Blocking queue is killed', 'failed to send data', or a hang",
        "the reader's own exception, where its items are read",
        "the exception says what is wrong",
    ),
    "no-threads": ("xmap_readers with process_num=0 hangs", "a ValueError", "nothing hangs"),
    "order-is-kept": (
        "keep_data_loader_order(False) lets batches overtake each other",
        "batches always arrive in the reader's order; there is no such function",
        "the same order in every run",
    ),
    "next-of-a-call": (
        "next(loader()) of a loader over a reader is an AttributeError",
        "it is the first step of a new epoch",
        "it is what next(loader()) of a loader over a dataset does",
    ),
    "nothing-hangs": (
        "a batch taken before start() never comes; start() twice, or without a source, corrupts the epoch",
        "an error at once, which is an AssertionError",
        "nothing hangs",
    ),
    "widths-are-checked": (
        "a value of another width passes if it has as many dimensions as its feed (and any, up to 2.6)",
        "an error that names sample and field",
        "a network would fail later, or learn from misplaced numbers",
    ),
    "no-empty-places": ("cpu_places(0) is an empty list", "a ValueError", "a loader needs a place"),
    "oversampling": (
        "RandomSampler(dataset, num_samples=120) of 100 samples is a ValueError",
        "it draws a second permutation for the rest",
        "as in PyTorch",
    ),
    "random-orders": (
        "np.random.seed(0) makes RandomSampler yield np.random.permutation",
        "it makes the order repeatable, but another one; generator=np.random.RandomState(0) gives Paddle's",
        "an order that is a function of seed and epoch can be resumed, and divided among ranks",
    ),
    "empty-subsets": ("SubsetRandomSampler([]) is a ValueError", "it is empty", "as in PyTorch"),
    "weights-are-a-list": (
        "a WeightedRandomSampler over a list of weights has no length",
        "its length is num_samples",
        "there is nothing to gain from the error",
    ),
    "iterables-can-be-listed": (
        "list(iterable dataset) is a RuntimeError, because list asks for a length",
        "it lists the items; the error for a length is also a TypeError, with which list does without",
        "that is what list is for",
    ),
    "ended-is-ended": (
        "next() after the end of an epoch may be a RuntimeError of a thread or worker that is gone",
        "StopIteration, every time",
        "so iterators are defined",
    ),
    "nothing-is-dropped": (
        "a loader over a dataset drops a last step that lacks a batch for a place, whatever drop_last is",
        "it delivers the step with fewer entries, unless drop_last is True",
        "nothing is dropped that nobody asked to drop",
    ),
    "typed-errors": (
        "an AssertionError without a reader",
        "a ReaderError, which is a TypeError",
        "all misuse of readers is of one type",
    ),
}
