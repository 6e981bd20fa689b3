"""What a place stands on: memory, streams, events and kernels of one GPU, the host, or a simulation.

In: places, and filled slots to copy. Out: arrays on the place. `pipeline` calls devices; `devices.cuda` is
the only module besides the kernels that imports CuPy.
"""
