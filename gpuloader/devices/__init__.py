"""Places and their devices: memory, streams, events and programs of a GPU, the host or a simulation.

In: places, and filled slots to copy.
Out: arrays in the place's memory, as the device's own arrays or as tensors of torch, JAX or Paddle.
Callers: `epoch` and `api`; `doctor` looks at the machine through `devices.cuda`.

Apart from the kernels, only `devices.cuda` imports CuPy.
"""
