import time

import numpy as np


def test_it_takes_no_less_than_the_time_asked_for(kernels):
    start = time.perf_counter_ns()
    kernels.load("spin")((1,), (1,), (np.uint64(3_000_000),))
    assert time.perf_counter_ns() - start >= 3_000_000
