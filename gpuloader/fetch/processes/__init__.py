"""Worker processes, which write samples straight into the loader's slots.

In: jobs from a `fetch.jobs.Window`, and one pickled dataset.
Out: staged batches.
Callers: `fetch.fetching` alone.

The loader's side of the wire is `workers`, `pool`, `process`, `starting` and `failures`. The worker's side
is `worker`, `surroundings` and `reporting`, and `preloaded` in the fork server. Both sides share `setup`,
`wire`, `shipping` and `pickling`.
"""
