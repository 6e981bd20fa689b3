"""What to read: datasets here; readers, files and MNIST in rooms of their own.

In: indices, or nothing. Out: samples. `collate` calls datasets in whatever thread or process fetches.
"""
