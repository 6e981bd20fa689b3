"""CUDA kernels, each beside its NumPy twin."""
