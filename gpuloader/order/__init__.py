"""Which samples make up which batch, on which rank, and what is random about a sample.

In: a seed, an epoch, a sampler, a division among ranks. Out: plans, which give the indices of each batch and
can be entered anywhere. `loader`, `fetch` and `collate` call it; it reads no sample.
"""
