"""CUDA kernels. NAME.cu is the kernel; NAME.py declares it, once, with a NumPy twin that gives the same bits.

In: arrays on one device (CuPy) or on the host (NumPy), and a stream to launch on.
Out: the result array, newly allocated or the caller's `out`.
Callers: `transforms` runs kernels and twins; `doctor` compiles them; tests and benchmarks may use them all.
"""
