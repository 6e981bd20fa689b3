"""Shared foundations: exceptions, argument checks, operating-system differences, child processes.

In: plain values; `processes` also takes process objects of `multiprocessing`.
Out: checked values, exceptions, descriptors and memory mappings.
Callers: any package; this one imports nothing else from gpuloader.
"""
