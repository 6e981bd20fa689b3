"""CUDA kernels: NAME.cu is the kernel, NAME.py its launcher and its NumPy twin of the same signature."""
