"""The names of ``paddle.vision`` that concern loading: its transforms.

In: parameters as Paddle's classes take them.
Out: transforms of `gpuloader.transforms`, for the ``transforms`` of a loader.
Callers: users.
"""
