"""The conformance suite of all devices, on the first GPU."""

import pytest

from gpuloader import CUDAPlace
from gpuloader.devices.places import open_device
from tests.devices.conformance import DeviceTests


class TestCudaDevice(DeviceTests):
    @pytest.fixture
    def device(self):
        return open_device(CUDAPlace(0))

    def read(self, device, array):
        return array.get()
