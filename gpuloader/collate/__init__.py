"""From samples to filled slots: every value is written once, straight into its slot.

In: samples of a dataset, or items of a reader, and a way to reserve a slot. Out: staged batches.
`fetch` calls it, in whatever thread or process fetches.
"""
