"""Host memory for batches: the layout of fields in a slot, the ring of slots, and leases on them.

In: shapes and dtypes of the fields; callers write the samples into the slots.
Out: slots, NumPy views of them, and a bounded queue that carries staged batches.
Callers: any package above it, mainly `collate`, `fetch`, `devices` and `pipeline`.
"""
