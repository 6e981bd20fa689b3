"""What a loader reads: datasets here; tables, files, images, readers and MNIST in subpackages.

In: indices for map-style datasets, nothing for iterable datasets and readers.
Out: samples, or blocks of samples in columns; and for the loader, a `Source` that says how a dataset is read.
Callers: users; `batches` and `fetch`, in the thread or process that fetches; `epoch` and `api`.
"""
