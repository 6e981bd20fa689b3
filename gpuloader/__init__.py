"""gpuloader: the loader that keeps a GPU fed."""
