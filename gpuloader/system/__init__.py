"""What is below all other packages: differences between operating systems, processes, threads, signals.

Any package may import it; beside `errors` and `checks` it imports nothing else from gpuloader.
"""
