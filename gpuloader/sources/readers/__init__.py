"""Readers: functions without arguments that return an iterable, and their decorators.

In: readers. Out: readers. Users call them as `gpuloader.reader`; the loader iterates what comes out.
"""
