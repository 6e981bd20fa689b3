"""The conformance suite on the devices that need no GPU."""

import pytest

from gpuloader.devices.host import HostDevice
from gpuloader.devices.simulated import SimulatedDevice
from tests.devices.conformance import DeviceTests


class TestHostDevice(DeviceTests):
    @pytest.fixture
    def device(self):
        return HostDevice()


class TestSimulatedDevice(DeviceTests):
    @pytest.fixture(params=range(5))
    def device(self, request):
        return SimulatedDevice(seed=request.param)
