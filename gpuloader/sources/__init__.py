"""What a loader reads: datasets here; readers, files and MNIST in rooms of their own.

In: indices for map-style datasets, nothing for iterable datasets and readers.
Out: samples, or blocks of samples in columns.
Callers: users; `collate` and `fetch`, in the thread or process that fetches; `pipeline` and `loader`.
"""
