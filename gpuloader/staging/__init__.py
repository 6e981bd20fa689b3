"""Host memory for batches: the layout of fields in a slot, the ring of slots, and leases on them.

In: shapes and dtypes of the fields; callers write the samples into the slots.
Out: slots, and NumPy views of them.
Callers: any package above it, mainly `batches`, `fetch`, `devices` and `epoch`.
"""
