"""Streams of other libraries, in the forms in which CUDA libraries exchange them."""


class Named:
    """A stream known only by its handle."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


def as_cupy(stream):
    """Return a torch stream as a CuPy stream."""
    import cupy

    handle = stream.cuda_stream
    return cupy.cuda.Stream.from_external(Named(handle)) if handle else cupy.cuda.Stream.null
