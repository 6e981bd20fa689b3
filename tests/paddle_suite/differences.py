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
    "typed-errors": (
        "an AssertionError without a reader",
        "a ReaderError, which is a TypeError",
        "all misuse of readers is of one type",
    ),
}
