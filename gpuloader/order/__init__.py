"""The order of samples, their division into batches and among ranks, and per-sample random numbers.

In: a seed, an epoch, a sampler, the rank and world size.
Out: plans, which yield the indices of each batch from any batch on; random generators. No sample is read.
Callers: any package above it, and users through samplers, `sample_rng` and `get_worker_info`.
"""
