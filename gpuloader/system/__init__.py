"""The lowest layer: differences between operating systems, processes, threads, signals.

Any package may import it; it imports only `errors` and `checks` from gpuloader.
"""
