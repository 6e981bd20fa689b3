"""A loader creates a context on the GPUs of its places, and on no other one."""

import pytest

from tests.gpu.processes import run_python

ASK = """
    import ctypes
    import threading
    import cupy
    import numpy as np
    from gpuloader import DataLoader, TensorDataset
    from gpuloader.transforms import Cast

    driver = ctypes.CDLL("libcuda.so.1")

    def active():
        found = []
        for device in range(cupy.cuda.runtime.getDeviceCount()):
            flags, state = ctypes.c_uint(), ctypes.c_int()
            assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(state)) == 0
            if state.value:
                found.append(device)
        return found

    def in_a_fresh_thread(work):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
"""


def test_none_is_created_before_it_is_needed():
    assert run_python(
        ASK,
        """
        loader = DataLoader(TensorDataset(np.zeros((8, 4))), batch_size=2)
        [device] = loader._epochs.delivery.devices
        print([device.name], active(), cupy.cuda.runtime.getDevice(), active())
    """,
    ) == ["['gpu:0'] [] 0 []"]


@pytest.mark.parametrize("cache", [None, "device"])
def test_the_last_gpu_alone_has_one(cache, gpus):
    last = gpus - 1
    assert run_python(
        ASK,
        f"""
        def work():
            rows = TensorDataset(np.zeros((64, 8), np.uint8))
            options = {{"places": "gpu:{last}", "batch_size": 4, "shuffle": True, "cache": {cache!r}}}
            for _ in range(2):
                for [batch] in DataLoader(rows, transforms=[Cast("0", "int16")], **options):
                    assert batch.device.id == {last}
                    assert not batch.get().any()
            print(cupy.cuda.runtime.getDevice())

        in_a_fresh_thread(work)
        print(active())
    """,
    ) == ["0", f"[{last}]"]


def test_the_runtime_follows_the_current_context(gpus):
    """The device of a context that is made current through the driver is the current device."""
    assert run_python(
        ASK,
        """
        from gpuloader.devices.cuda_device import CudaDevice

        def work():
            with CudaDevice(1).current():
                print(cupy.cuda.runtime.getDevice(), cupy.empty(4).device.id)
            print(cupy.cuda.driver.ctxGetCurrent(), cupy.cuda.runtime.getDevice(), active())

        in_a_fresh_thread(work)
    """,
    ) == ["1 1", "0 0 [1]"]
