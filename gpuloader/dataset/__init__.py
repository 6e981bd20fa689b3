"""The names of ``paddle.dataset`` that the MNIST tutorials use: readers of the digits.

In: nothing; the digits come from files that are there already.
Out: readers of single digits.
Callers: old programs of users.
"""

from gpuloader.dataset import mnist

__all__ = ["mnist"]
