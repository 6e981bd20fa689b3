"""The two libraries that the cases run on, behind the same few names."""

import contextlib
from types import SimpleNamespace

import numpy as np

import gpuloader
from gpuloader.reader import batch
from tests.paddle_suite.differences import DIFFERENCES


class Library:
    """What a case may use besides `io`, `reader` and `fluid`, which both libraries have."""

    name = ""  # 'gpuloader' or 'paddle'
    version = ()  # of Paddle

    def differs(self, key):
        """Return whether this library behaves in gpuloader's way where the two differ on purpose."""
        assert key in DIFFERENCES, f"describe {key!r} in differences.py"
        return self.name == "gpuloader"


class Gpuloader(Library):
    name = "gpuloader"
    io, reader, fluid, dataset = gpuloader.io, gpuloader.reader, gpuloader.fluid, gpuloader.dataset
    batch = staticmethod(batch)
    tensor = staticmethod(np.asarray)
    cpu = gpuloader.CPUPlace()
    data = staticmethod(gpuloader.data)

    @contextlib.contextmanager
    def static(self):
        with gpuloader.fluid.program_guard(gpuloader.fluid.Program(), gpuloader.fluid.Program()):
            yield

    @contextlib.contextmanager
    def dynamic(self):
        with gpuloader.fluid.dygraph.guard(self.cpu):
            yield


def _without_shared_memory(paddle):
    """Return Paddle's loader, whose workers send their arrays as they are by default."""

    class Loader(paddle.io.DataLoader):
        # A worker that makes tensors waits forever if another thread counted memory while it was forked.
        def __init__(self, *args, num_workers=0, **options):
            options.setdefault("use_shared_memory", not num_workers)
            super().__init__(*args, num_workers=num_workers, **options)

    return Loader


class Paddle(Library):
    """PaddlePaddle 2.6 or 3.3, where ``paddle.fluid`` has become ``paddle.base``."""

    name = "paddle"

    def __init__(self):
        import paddle
        from paddle import base

        self.paddle = paddle
        self.version = tuple(int(part) for part in paddle.__version__.split(".")[:2])
        self.io = SimpleNamespace(**vars(paddle.io) | {"DataLoader": _without_shared_memory(paddle)})
        self.reader, self.fluid, self.dataset = paddle.reader, base, paddle.dataset
        self.batch = paddle.batch
        self.tensor = paddle.to_tensor
        self.cpu = paddle.CPUPlace()
        self.data = paddle.static.data
        self.programs = []  # kept: Paddle 3 crashes if a loader's thread outlives the program of its feeds

    @contextlib.contextmanager
    def static(self):
        base = self.fluid
        self.paddle.enable_static()
        self.programs += [base.Program(), base.Program()]
        try:
            with (
                base.scope_guard(base.Scope()),
                base.unique_name.guard(),
                base.program_guard(*self.programs[-2:]),
            ):
                yield
        finally:
            self.paddle.disable_static()

    @contextlib.contextmanager
    def dynamic(self):
        with self.fluid.dygraph.guard(self.cpu):
            yield


def array(value):
    """Return a field of a batch as a NumPy array."""
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


def rows(value):
    """Return a field of a batch as nested lists."""
    return array(value).tolist()
