"""Failures on hardware raise the package's errors, and the device still works afterwards if CUDA permits."""

import contextlib

import numpy as np
import pytest

from gpuloader import DataLoader, StagingMemoryError, TensorDataset
from gpuloader.errors import LoaderError
from tests.gpu.processes import run_python

ROWS = TensorDataset(np.arange(64 * 1024, dtype=np.float32).reshape(64, 1024))


def load(**options):
    return DataLoader(ROWS, places="gpu:0", batch_size=4, **options)


REFUSED = "cannot deliver a batch during a graph capture"


@pytest.mark.parametrize("mode", ["global", "relaxed"])
def test_a_batch_is_refused_while_its_stream_is_captured(mode):
    """Neither the graph nor the epoch is damaged."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        epoch = iter(load())
        [rows] = next(epoch)
        found = [rows.get()]
        total = cupy.zeros(1024, np.float32)
        cupy.add(total, rows[0], out=total)  # compile the kernel first; a capture does not allow it
        stream.synchronize()
        stream.begin_capture(getattr(cupy.cuda.runtime, f"streamCaptureMode{mode.title()}"))
        cupy.add(total, rows[1], out=total)
        with pytest.raises(LoaderError, match=REFUSED):
            next(epoch)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(total.get(), ROWS.arrays[0][:2].sum(0))
        found += [batch.get() for [batch] in epoch]
    np.testing.assert_array_equal(np.concatenate(found), ROWS.arrays[0])


class TestGraphsOfTorch:
    """`torch.cuda.graph` captures in mode 'global', in which many calls by any thread end the capture."""

    @pytest.mark.parametrize("output", ["torch", "cupy"])
    def test_asking_for_a_batch(self, torch, output):
        epoch = iter(load(output=output))
        [rows] = next(epoch)
        here = torch.from_dlpack(rows)
        found, static = [here.cpu().numpy()], here.clone()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            doubled = static * 2
            for _ in range(3):
                with pytest.raises(LoaderError, match=REFUSED):
                    next(epoch)
            with pytest.raises(LoaderError, match=REFUSED):
                next(iter(load(output=output)))
        graph.replay()
        np.testing.assert_array_equal(doubled.cpu().numpy(), 2 * found[0])
        found += [torch.from_dlpack(rows).cpu().numpy() for [rows] in epoch]
        np.testing.assert_array_equal(np.concatenate(found), ROWS.arrays[0])

    @pytest.fixture
    def capture(self, torch):
        """Return a context that captures a graph, and checks afterwards that the graph computes."""

        @contextlib.contextmanager
        def begin():
            static, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                doubled = static * 2
                yield
            graph.replay()
            assert doubled.tolist() == [2, 2, 2, 2]

        return begin

    def test_leaving_a_loop(self, capture):
        loader = load(output="torch")
        epoch = iter(loader)
        next(epoch)
        with capture():
            with pytest.raises(LoaderError, match=REFUSED):
                for _ in epoch:
                    pass
            del epoch
        assert len(list(loader)) == 16

    def test_dropping_batches(self, capture):
        """During the capture nothing is called for them, and their memory is used again afterwards."""
        epoch = iter(load(output="torch"))
        kept = [next(epoch) for _ in range(6)]
        with capture():
            kept.clear()
        assert len(list(epoch)) == 10

    def test_dropping_the_last_batches_of_a_loader_and_a_loader(self, capture):
        """Their memory is freed later; `cudaFree` and `cudaHostUnregister` would end the capture."""
        kept, loaders = list(load(output="torch")), [load(output="torch")]
        kept += list(loaders[0])
        with capture():
            kept.clear()
            loaders.clear()
        assert len(list(load())) == 16


def test_batches_kept_beyond_the_devices_memory():
    """The error has the numbers, kept batches stay intact, and later loaders work."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    left = 512 << 20
    filler = cupy.cuda.Memory(max(free - left, 1))
    block = np.broadcast_to(np.zeros(1, np.uint8), (64, 64 << 20))
    kept = []
    with pytest.raises(StagingMemoryError, match="are free"):
        for [rows] in DataLoader(TensorDataset(block), places="gpu:0", batch_size=1):
            kept.append(rows)
    assert 2 <= len(kept) < 64
    assert not any(int(rows.max()) for rows in kept)
    kept.clear()
    del filler, rows
    assert len(list(load())) == 16


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_device_lost_in_a_kernel_is_told_and_nothing_hangs(cache):
    """Runs in a separate process, because the whole process loses such a device."""
    code = """
        import cupy
        import numpy as np
        from gpuloader import DataLoader, LoaderError, TensorDataset

        bad = cupy.RawKernel('extern "C" __global__ void bad(int* where) { *where = 1; }', "bad")
        rows = TensorDataset(np.zeros((64, 1024), np.float32))
        epoch = iter(DataLoader(rows, places="gpu:0", batch_size=4, cache=CACHE))
        next(epoch)
        bad((1,), (1,), (np.uint64(8),))
        try:
            for _ in range(20):
                next(epoch)
                cupy.cuda.runtime.deviceSynchronize()
        except LoaderError as error:
            print("told:", error)
        except cupy.cuda.runtime.CUDARuntimeError:
            try:
                next(epoch)
            except LoaderError as error:
                print("told:", error)
        import os
        os._exit(0)
    """
    assert run_python(code.replace("CACHE", repr(cache)))[0].startswith("told: gpu:0 failed")


@pytest.mark.parametrize("state", ["running", "kept", "kernels running"])
def test_the_interpreter_exits_in_silence(state):
    code = """
        import numpy as np
        from gpuloader import DataLoader
        from gpuloader.kernels.spin import spin

        loader = DataLoader.from_generator(capacity=3, return_list=True)
        reader = lambda: ([np.zeros((64, 1024), np.float32)] for _ in range(1000))
        epoch = iter(loader.set_batch_generator(reader, places="gpu:0"))
        kept = [next(epoch) for _ in range(9)]
        if STATE == "running":
            del kept
        if STATE == "kernels running":
            spin(300_000_000)
        print("done")
    """
    assert run_python(code.replace("STATE", repr(state))) == ["done"]
