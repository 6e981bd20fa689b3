import time

import numpy as np

from gpuloader.kernels.spin import spin_on_host


def test_the_kernel_and_its_twin_take_no_less_than_the_time_asked_for(kernels):
    spin = kernels.load("spin")
    for function in (lambda: spin((1,), (1,), (np.uint64(3_000_000),)), lambda: spin_on_host(3_000_000)):
        start = time.perf_counter_ns()
        function()
        assert time.perf_counter_ns() - start >= 3_000_000
