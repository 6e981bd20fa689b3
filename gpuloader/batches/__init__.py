"""Turns samples into batches: every value is written once, straight into its slot.

In: a dataset's samples or a reader's items, and a function that reserves a slot.
Out: a `StagedBatch`, whose arrays lie in the slot, ready to copy to a device or hand to the user.
Callers: `fetch`, from the thread or process that fetches; `api` chooses the `Collation`.
"""
