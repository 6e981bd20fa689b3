"""gpuloader: the loader that keeps a GPU fed."""

from gpuloader.errors import EOFException as EOFException
from gpuloader.loader import DataLoader as DataLoader
from gpuloader.spec import data as data
