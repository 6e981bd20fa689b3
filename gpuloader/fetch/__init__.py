"""Fill the slots: in the consumer's thread, a reader thread, worker threads or worker processes.

In: a plan's batches of indices, or an open reader. Out: staged batches, in the plan's order unless
``in_order=False``. `api` opens one `contract.Fetch` per epoch, and `epoch` takes the batches from it.
"""
