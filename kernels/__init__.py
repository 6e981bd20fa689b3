"""CUDA kernels. NAME.cu is the kernel; NAME.py has its launcher and a NumPy twin of the same signature.

In: arrays on one device (CuPy) or on the host (NumPy), and a stream to launch on.
Out: the result array, newly allocated or the caller's `out`; kernel and twin agree bit for bit.
Callers: `transforms` runs kernels and twins; `doctor` compiles them; tests and benchmarks may use them all.
"""
