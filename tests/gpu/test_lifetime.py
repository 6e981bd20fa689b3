"""A batch that the user holds never changes, however late kernels run and on any stream."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from gpuloader import CUDAPlace
from gpuloader.kernels.checksum import checksum, checksum_on_host
from gpuloader.kernels.spin import spin
from tests.gpu.streams import Named
from tests.loading import read_batches

SHAPE = (64, 1024)
SPIN = 20_000_000  # nanoseconds, the time of many copies


def batches(count):
    return lambda: ([np.full(SHAPE, n, np.float32)] for n in range(count))


def load(count, **options):
    return read_batches(batches(count), "gpu:0", capacity=3, **options)


@pytest.mark.parametrize("step", [1, 3])
def test_held_batches_survive(step):
    kept = [batch for number, (batch,) in enumerate(load(40)) if number % step == 0]
    for batch, number in zip(kept, range(0, 40, step), strict=True):
        expected = checksum_on_host(np.full(SHAPE, number, np.float32))
        assert checksum(batch).get() == expected


def test_slices_survive_their_batch():
    kept = [batch[5:7, ::3].T for (batch,) in load(40)]
    for number, part in enumerate(kept):
        assert (part.get() == number).all()


@pytest.mark.parametrize("double_buffer", [True, False])
def test_a_batch_dropped_at_once_is_not_overwritten_before_its_kernel_ran(double_buffer):
    import cupy

    results = []
    for (batch,) in load(30, use_double_buffer=double_buffer):
        spin(SPIN // 10)
        results.append(batch.sum())
        del batch
    cupy.cuda.Device(0).synchronize()
    assert [float(result) for result in results] == [n * SHAPE[0] * SHAPE[1] for n in range(30)]


def test_a_non_blocking_consumer_stream():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    results = []
    with stream:
        for (batch,) in load(30):
            spin(SPIN // 10, stream=stream)
            results.append(batch.sum())
            del batch
    stream.synchronize()
    assert [float(result) for result in results] == [n * SHAPE[0] * SHAPE[1] for n in range(30)]


def test_a_foreign_stream_waits(torch):
    """With torch's stream as CuPy's current one, batches become ready on it and are released on it."""
    import cupy

    foreign = torch.cuda.Stream()
    results = []
    with torch.cuda.stream(foreign), cupy.cuda.Stream.from_external(Named(foreign.cuda_stream)):
        for (batch,) in load(30):
            spin(SPIN // 10, stream=cupy.cuda.get_current_stream())
            tensor = torch.from_dlpack(batch)
            results.append(tensor.double().sum())
            del batch, tensor
    foreign.synchronize()
    assert [float(result) for result in results] == [n * SHAPE[0] * SHAPE[1] for n in range(30)]


def test_kept_batches_outlive_the_loader():
    loader = load(10)
    kept = [batch for (batch,) in loader]
    del loader
    assert [float(batch[0, 0]) for batch in kept] == list(range(10))


def count_calls(monkeypatch, *names):
    """Return a counter of the calls that the loader makes to these functions of CUDA's runtime."""
    from collections import Counter
    from types import SimpleNamespace

    import cupy

    from gpuloader.devices.places import open_device

    device, runtime, calls = open_device(CUDAPlace(0)), cupy.cuda.runtime, Counter()

    def counting(name):
        def call(*arguments):
            calls[name] += 1
            return getattr(runtime, name)(*arguments)

        return call

    functions = {name: getattr(runtime, name) for name in dir(runtime) if not name.startswith("__")}
    functions |= {name: counting(name) for name in names}
    counted = SimpleNamespace(**functions)
    monkeypatch.setattr(device, "_runtime", counted)
    monkeypatch.setattr(device._calls, "_runtime", counted)
    return calls


def test_a_loop_that_holds_eight_batches_allocates_once(monkeypatch):
    calls, held = count_calls(monkeypatch, "malloc", "free"), []
    loader = load(64)
    for epoch in range(3):
        for number, batch in enumerate(loader):
            held.append(batch)
            del batch
            if len(held) == 8:
                held.clear()
            if not epoch and number == 8:
                assert calls["malloc"] >= 9
                calls.clear()
    assert not calls


def test_nothing_is_freed_while_batches_grow(monkeypatch):
    calls = count_calls(monkeypatch, "malloc", "free")
    loader = read_batches(lambda: ([np.full((n, 4096), n)] for n in range(1, 60)), "gpu:0", capacity=3)
    for epoch in range(3):
        for number, (batch,) in enumerate(loader):
            assert int(batch[-1, -1]) == number + 1
            assert not calls["free"]
        if epoch:
            assert not calls["malloc"]
        calls.clear()


@pytest.mark.parametrize("state", ["running", "kept", "kernels running"])
def test_the_interpreter_exits_in_silence(state):
    code = f"""
        import numpy as np
        from gpuloader import CUDAPlace, DataLoader
        from gpuloader.kernels.spin import spin

        loader = DataLoader.from_generator(capacity=3, return_list=True)
        loader.set_batch_generator(
            lambda: ([np.zeros((64, 1024), np.float32)] for _ in range(1000)), places="gpu:0"
        )
        epoch = iter(loader)
        kept = [next(epoch) for _ in range(9)]
        if {state!r} == "running":
            del kept
        if {state!r} == "kernels running":
            spin(300_000_000)
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
