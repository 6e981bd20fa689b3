"""Who fills the slots: the consumer itself, a reader's thread, worker threads, or worker processes.

In: a plan's batches of indices, or an open reader. Out: staged batches, in order. `pipeline` takes them
by the protocol in `fetch.base`; `loader` opens one fetch an epoch by `fetch.fetching`.
"""
