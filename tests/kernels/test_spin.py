import ctypes
import time

from gpuloader.kernels.spin import spin_on_host

LAUNCHER = """
extern "C" void run(unsigned long long nanoseconds) { launch(spin, 1, 1, nanoseconds); }
"""


def test_the_kernel_and_its_twin_take_no_less_than_the_time_asked_for(build):
    library = build("spin", LAUNCHER)
    for function in (lambda: library.run(ctypes.c_ulonglong(3_000_000)), lambda: spin_on_host(3_000_000)):
        start = time.perf_counter_ns()
        function()
        assert time.perf_counter_ns() - start >= 3_000_000
