"""Host memory for batches: where fields lie in a slot, the ring of slots, and leases on them.

In: shapes and dtypes, then whoever writes samples. Out: filled slots in a queue. `fetch`, `collate`,
`pipeline` and `devices` call it.
"""
