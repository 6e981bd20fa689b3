"""Our loader beside others that are installed, over the same datasets: what ``gpuloader bench`` measures.

Every library has a process of its own, in which its loader is written as its users would write it and read
by the same consumer; the libraries take turns, with a bare NumPy loop as the floor. Tables belong to the
command line; the plot needs the extra ``bench``.
"""
