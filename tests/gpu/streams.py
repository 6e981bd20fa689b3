"""Streams of other libraries, as CUDA libraries hand them over."""


class Named:
    """A stream known by its handle alone."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


def as_cupy(stream):
    """Return torch's stream as CuPy's."""
    import cupy

    handle = stream.cuda_stream
    return cupy.cuda.Stream.from_external(Named(handle)) if handle else cupy.cuda.Stream.null
