"""Compiling kernels ahead: on which devices, how often, in which process, and when it ends."""

import os
import threading

import pytest

from gpuloader.epoch.epoch import KernelsAhead
from tests.fakes import wait_until

PROGRAM = object()


class Compiling:
    """A device that notes what it compiles, and goes on once it may."""

    def __init__(self, direct=False, goes_on=True):
        self.direct = direct
        self.compiled = []
        self.goes_on = threading.Event()
        if goes_on:
            self.goes_on.set()

    def compile(self, program, stop):
        self.compiled.append(program)
        assert self.goes_on.wait(10)


def compilers():
    return [thread for thread in threading.enumerate() if thread.name == "gpuloader-compiler"]


def test_each_device_compiles_the_first_program_once():
    devices = [Compiling(), Compiling()]
    ahead = KernelsAhead([devices[0], devices[1], devices[0]])
    for program in (PROGRAM, object()):
        ahead.begin(program)
        wait_until(lambda: not compilers())
    ahead.finish()
    assert [device.compiled for device in devices] == [[PROGRAM]] * 2


def test_a_host_compiles_nothing(monkeypatch):
    started = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    host = Compiling(direct=True)
    ahead = KernelsAhead([host])
    ahead.begin(PROGRAM)
    ahead.finish()
    assert host.compiled == started == []


def test_the_end_tells_the_device_and_waits_for_it():
    device, ended = Compiling(), []

    def compile_until_told(program, stop):
        wait_until(stop)
        ended.append(program)

    device.compile = compile_until_told
    ahead = KernelsAhead([device])
    ahead.begin(PROGRAM)
    ahead.finish()
    assert ended == [PROGRAM]


def test_after_an_end_nothing_begins():
    device = Compiling()
    ahead = KernelsAhead([device])
    ahead.finish()
    ahead.begin(PROGRAM)
    assert not compilers()
    assert device.compiled == []


def test_a_failure_concerns_that_device_alone():
    failing, device = Compiling(), Compiling()
    failing.compile = None
    ahead = KernelsAhead([failing, device])
    ahead.begin(PROGRAM)
    wait_until(lambda: device.compiled)
    ahead.finish()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_compiles_nothing_and_waits_for_no_thread():
    device = Compiling(goes_on=False)
    busy, idle = KernelsAhead([device]), KernelsAhead([device])
    busy.begin(PROGRAM)
    wait_until(lambda: device.compiled)
    if (child := os.fork()) == 0:
        idle.begin(PROGRAM)
        busy.finish()
        os._exit(len(compilers()) + len(device.compiled))
    device.goes_on.set()
    _, status = os.waitpid(child, 0)
    busy.finish()
    assert os.waitstatus_to_exitcode(status) == 1
