"""Compare gpuloader with other installed loaders over the same datasets, for ``gpuloader bench``.

Each library runs in its own process, uses its loader as its users would write it, and feeds the same
consumer. The libraries take turns, with a bare NumPy loop as the floor. The command line renders the tables;
the plot needs the extra ``bench``.
"""
