"""A batch's way from staged to delivered: transfer, leases, and steps for one place or many.

In: staged batches of a fetch. Out: steps, each an array a field and place. `loader` runs one pipeline
an epoch, in the consumer's thread.
"""
