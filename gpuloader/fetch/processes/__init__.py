"""Worker processes, which write samples into the loader's slots.

In: jobs. Out: staged batches. The loader's side is `workers`, `pool`, `process`, `starting` and `failures`;
the child's is `worker`, `surroundings` and `reporting`; both share `setup`, `wire`, `shipping`, `pickling`.
"""
