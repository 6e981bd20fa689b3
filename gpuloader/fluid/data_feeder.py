"""The names of ``paddle.fluid.data_feeder`` that old loading code uses."""

from gpuloader.api.feeder import DataFeeder

__all__ = ["DataFeeder"]
