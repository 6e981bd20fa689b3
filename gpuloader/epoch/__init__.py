"""Move staged batches to their places and hand them to the user, for one place or many.

In: staged batches from a `fetch.contract.Fetch`, and the slots they lie in.
Out: steps, each with one batch per place, as a list of arrays that hold a lease on the batch's memory.
Callers: `api`, which opens one epoch after another in the consumer's thread.
"""
