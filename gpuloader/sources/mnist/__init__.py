"""MNIST as arrays, from gzip JSON, IDX files, or the sample in the package.

In: a path, or None for the sample.
Out: sets of digits, and readers of them.
Callers: users, `demo` and `cli`.
"""

from gpuloader.sources.mnist.digits import (
    DigitSet,
    Mnist,
    load,
    load_idx,
    read_idx,
    read_json,
    reader,
    sample,
    sample_reader,
)

__all__ = [
    "DigitSet",
    "Mnist",
    "load",
    "load_idx",
    "read_idx",
    "read_json",
    "reader",
    "sample",
    "sample_reader",
]
