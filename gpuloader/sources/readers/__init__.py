"""Readers, which are functions without arguments that return an iterable, and their decorators.

In: readers.
Out: readers.
Callers: users, through `gpuloader.reader`; `batches` and `api`, which check and iterate readers.
"""
