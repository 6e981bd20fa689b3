"""Worker threads: each batch is cut into parts, and each part is one thread's job.

In: jobs. Out: staged batches. Opened by `fetch.fetching`.
"""
