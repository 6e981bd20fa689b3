"""Worker threads: map-style batches are cut into one part per thread; iterable ones go to threads in turn.

In: jobs from a `fetch.jobs.Window`.
Out: staged batches.
Callers: `fetch.fetching` alone.
"""
