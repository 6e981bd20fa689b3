"""Training steps captured into a CUDA graph over a loader's fixed addresses; the same results as without."""

import numpy as np
import pytest

from gpuloader import DataLoader, TensorDataset, record_stream
from tests.gpu.streams import as_cupy

COUNT, BATCH, WIDTH = 40, 64, 128
WARM_STEPS = 3


def dataset():
    numbers = np.random.default_rng(7)
    return TensorDataset(
        numbers.random((COUNT * BATCH, WIDTH), np.float32), numbers.integers(0, 10, COUNT * BATCH)
    )


def load(output, **options):
    options |= {"batch_size": BATCH, "shuffle": True, "seed": 3, "output": output, "static": True}
    return DataLoader(dataset(), places="gpu:0", **options)


def sums_on_host():
    """Return the sum of each batch's images in the first epoch."""
    loader = DataLoader(dataset(), places="cpu", batch_size=BATCH, shuffle=True, seed=3)
    return [images.sum(dtype=np.float64) for images, _ in loader]


class Training:
    """A small model and its optimizer, and the losses of its steps."""

    def __init__(self, torch):
        torch.manual_seed(0)
        self.torch, self.losses = torch, []
        self.model = torch.nn.Linear(WIDTH, 10, device="cuda")
        # Its steps read no state of the host, so they can be captured.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loss = torch.zeros((), device="cuda")

    def step(self, images, labels):
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def note(self):
        self.losses.append(self.loss.clone())


@pytest.mark.parametrize("options", [{}, {"cache": "device"}, {"num_workers": 2}, {"prefetch": 3}], ids=str)
def test_a_training_step_captured_by_torch_trains_as_without_a_graph(torch, options):
    eager, loader = Training(torch), load("torch", **options)
    for _ in range(2):
        for images, labels in loader:
            eager.step(images, labels)
            eager.note()
    graphed, graph, seen = Training(torch), None, set()
    loader, number = load("torch", **options), 0
    for _ in range(2):
        for images, labels in loader:
            seen.add((images.data_ptr(), labels.data_ptr()))
            if number < WARM_STEPS:  # the first steps of a model allocate
                graphed.step(images, labels)
            elif graph is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    graphed.step(images, labels)
                graph.replay()
            else:
                graph.replay()
            graphed.note()
            number += 1
    assert len(seen) == 1
    losses = [[float(loss) for loss in one.losses] for one in (eager, graphed)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[1][-1] < losses[1][0]


def test_a_graph_of_cupy_sees_every_batch():
    import cupy

    loader, graph = load("cupy"), None
    stream, total = cupy.cuda.Stream(non_blocking=True), None
    sums = []
    with stream:
        for images, _ in loader:
            if graph is None:
                total = cupy.zeros((), cupy.float32)
                add = cupy.ElementwiseKernel(
                    "float32 x", "raw float32 out", "atomicAdd(&out[0], x)", "add_up"
                )
                add(images, total)  # compiles
                stream.begin_capture()
                total.fill(0)
                add(images, total)
                graph = stream.end_capture()
            graph.launch(stream)
            sums.append(total.copy())
    stream.synchronize()
    np.testing.assert_allclose([one.get() for one in sums], sums_on_host(), rtol=1e-4)


def test_a_graph_replayed_on_a_side_stream(torch):
    side, loader = torch.cuda.Stream(), load("torch")
    graph, total, sums = None, torch.zeros((), device="cuda"), []
    for images, labels in loader:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            if graph is None:
                images.sum()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=side):
                    total.copy_(images.sum())
            graph.replay()
            sums.append(total.clone())
        record_stream(images, side)
        del images, labels
    side.synchronize()
    np.testing.assert_allclose([float(one) for one in sums], sums_on_host(), rtol=1e-4)


def test_streams_of_torch_and_cupy_may_take_turns(torch):
    """The loader orders a batch behind all use of the one before, on whichever stream."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    epoch, kept = iter(load("torch")), []
    for number in range(COUNT):
        stream = streams[number % 2]
        with torch.cuda.stream(stream), as_cupy(stream):
            images, _ = next(epoch)
            torch.cuda._sleep(100_000)
            kept.append(images.sum())
            del images, _
    torch.cuda.synchronize()
    np.testing.assert_allclose([float(one) for one in kept], sums_on_host(), rtol=1e-4)
