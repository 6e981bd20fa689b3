"""`prefetch` around PyTorch's own loader: its tensors, its workers and its samplers."""

import dataclasses
import gc
import weakref

import numpy as np
import pytest

import gpuloader
from gpuloader.testing import CustomPlace, SimulatedArray, simulated_places
from gpuloader.transforms import Cast, Normalize
from tests.api.test_prefetching import Locked, note_copies
from tests.fakes import loader_threads, nothing_left_behind

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import PackedSequence, pack_sequence  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


@dataclasses.dataclass
class Sample:
    ids: torch.Tensor
    name: str


def digits(count=20):
    return TensorDataset(torch.arange(count * 4.0).reshape(count, 4), torch.arange(count) % 10)


def numbers(batch):
    return np.asarray(batch).tolist()


class TestItsBatches:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("prefetch", [0, 2])
    def test_they_are_the_same(self, place, workers, prefetch):
        def load():
            generator = torch.Generator().manual_seed(1)
            return DataLoader(digits(), 3, shuffle=True, num_workers=workers, generator=generator)

        found = list(gpuloader.prefetch(load(), place, prefetch))
        assert [list(map(numbers, batch)) for batch in found] == [
            list(map(numbers, batch)) for batch in load()
        ]
        kind = torch.Tensor if place == "cpu" else SimulatedArray
        assert all(type(one) is kind for batch in found for one in batch)
        assert not loader_threads()

    def test_an_output_makes_tensors_of_arrays(self):
        batches = [{"x": np.arange(3), "y": torch.ones(2), "z": "text"}]
        [found] = gpuloader.prefetch(batches, places="cpu", output="torch")
        assert found["x"].tolist() == [0, 1, 2]
        assert found["y"] is batches[0]["y"]
        [found] = gpuloader.prefetch(batches, places="cpu", output="numpy")
        assert type(found["x"]) is type(found["y"]) is np.ndarray
        assert found["x"] is batches[0]["x"]

    def test_its_workers_end_with_the_loop(self, place):
        def read():
            for _ in gpuloader.prefetch(DataLoader(digits(), 3, num_workers=1), places=place):
                break
            gc.collect()

        read()  # multiprocessing keeps what it has opened first
        with nothing_left_behind():
            read()


class TestTensors:
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    @pytest.mark.filterwarnings("ignore:torch.quantize")
    def test_what_a_gpu_cannot_have_is_handed_through(self):
        batch = [
            torch.eye(3).to_sparse(),
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            torch.empty(2, device="meta"),
            torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8),
            torch.Size([2, 3]),
            torch.float16,
        ]
        [found] = gpuloader.prefetch([batch], places=simulated_places(1))
        assert all(one is other for one, other in zip(found[:4], batch, strict=False))
        assert found[4:] == batch[4:]
        assert type(found[4]) is torch.Size

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool])
    def test_every_dtype(self, dtype):
        batch = {"x": torch.arange(6).to(dtype), "y": np.arange(2)}
        [found] = gpuloader.prefetch([batch], places="cpu", output="torch")
        assert found["x"] is batch["x"]
        steps = [Cast("y", "float32")]  # so that all arrays go through the slot
        [found] = gpuloader.prefetch([batch], places="cpu", transforms=steps)
        assert (found["x"].dtype, found["y"].dtype) == (dtype, torch.float32)
        assert found["x"].view(torch.uint8).tolist() == batch["x"].view(torch.uint8).tolist()

    def test_views_and_conjugates(self):
        numbers = torch.arange(12.0).reshape(3, 4)
        batch = [numbers.t(), numbers[:, 1], torch.view_as_complex(numbers.reshape(6, 2)).conj(), numbers[:0]]
        [found] = gpuloader.prefetch([batch], places=simulated_places(1))
        for one, other in zip(found, batch, strict=True):
            np.testing.assert_array_equal(np.asarray(one), other.resolve_conj().numpy())

    def test_gradients_stay_on_a_cpu_and_are_warned_of_elsewhere(self):
        batch = [torch.ones(2, requires_grad=True)]
        [found] = gpuloader.prefetch([batch], places="cpu")
        assert found[0] is batch[0]
        with pytest.warns(UserWarning, match="delivered without it"):
            [found] = gpuloader.prefetch([batch], places=simulated_places(1))
        assert np.asarray(found[0]).tolist() == [1, 1]

    def test_packed_sequences_and_dataclasses_keep_what_belongs_on_the_host(self, place):
        packed = pack_sequence([torch.arange(3), torch.arange(2)])
        [[words, sample]] = gpuloader.prefetch([[packed, Sample(torch.arange(3), "name")]], places=place)
        assert (type(words), type(sample)) == (PackedSequence, Sample)
        assert type(words.data) is (torch.Tensor if place == "cpu" else SimulatedArray)
        assert words.batch_sizes is packed.batch_sizes
        assert (numbers(sample.ids), sample.name) == ([0, 1, 2], "name")

    def test_tensors_are_let_go(self, place):
        """A batch that was copied is not kept, however long the pass goes on."""
        gone = []

        def batches():
            for number in range(8):
                tensor = torch.full((3,), number)
                weakref.finalize(tensor, gone.append, number)
                yield [tensor]
                del tensor

        for number, batch in enumerate(gpuloader.prefetch(batches(), places=place, prefetch=1)):
            del batch
            gc.collect()
            assert number < 1 or number - 1 in gone
        gc.collect()
        assert sorted(gone) == list(range(8))

    def test_transforms_of_tensors_give_tensors(self):
        images = torch.full((2, 4, 4, 3), 51, dtype=torch.uint8)
        steps = [Normalize("0", scale=1 / 255)]
        [(found, labels)] = gpuloader.prefetch([(images, [1, 2])], places="cpu", transforms=steps)
        assert (type(found), found.shape, labels) == (torch.Tensor, (2, 3, 4, 4), [1, 2])
        torch.testing.assert_close(found, torch.full((2, 3, 4, 4), 0.2))


def test_pinned_tensors_are_copied_from_where_they_lie(monkeypatch):
    tensors = [torch.full((100, 100), n) for n in range(4)]
    device = Locked(*(one.numpy() for one in tensors))  # as if PyTorch had pinned them
    copies = note_copies(device, monkeypatch)
    loader = gpuloader.prefetch([{"x": one} for one in tensors], CustomPlace(device))
    assert [int(np.asarray(batch["x"])[0, 0]) for batch in loader] == [0, 1, 2, 3]
    assert copies[::2] == [(one.data_ptr(), one.nbytes) for one in tensors]


def test_datasets_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(10)), "name": [f"n{n}" for n in range(10)]})

    def load():
        stream = rows.to_iterable_dataset().with_format("torch").batch(4)
        return gpuloader.prefetch(stream, places="cpu", prefetch=3)

    loader, later = load(), load()
    seen = []
    for number, batch in enumerate(loader):
        assert type(batch["x"]) is torch.Tensor
        assert batch["name"][0] == f"n{4 * number}"
        seen.append(numbers(batch["x"]))
        if not number:
            later.load_state_dict(loader.state_dict())
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [numbers(batch["x"]) for batch in later] == seen[1:]
    streamed = gpuloader.prefetch(rows.with_format("torch").iter(batch_size=4), places="cpu")
    assert [numbers(batch["x"]) for batch in streamed] == seen


def test_graphs_of_pytorch_geometric(place):
    data = pytest.importorskip("torch_geometric.data")
    edges = torch.tensor([[0, 1], [1, 2]])
    graphs = [data.Data(x=torch.full((3, 2), n), edge_index=edges, label=n, name=f"g{n}") for n in (1, 2)]
    batch = data.Batch.from_data_list(graphs)
    for found in gpuloader.prefetch([batch, batch], places=place, host=["ptr"]):
        assert type(found) is type(batch)
        assert list(found.keys()) == list(batch.keys())
        assert numbers(found.x) == batch.x.tolist()
        assert numbers(found.edge_index) == batch.edge_index.tolist()
        assert found.name == ["g1", "g2"]
        assert found.ptr is batch.ptr
    assert found.num_graphs == 2
    assert type(batch.x) is torch.Tensor
    assert isinstance(found.x, torch.Tensor if place == "cpu" else SimulatedArray)

    several = data.HeteroData()  # a graph of several types
    several["paper"].x = torch.ones(3, 2)
    several["paper", "cites", "paper"].edge_index = edges
    [found] = gpuloader.prefetch([several], places=place, host=["paper__cites__paper.edge_index"])
    assert numbers(found["paper"].x) == [[1, 1]] * 3
    assert found["paper", "cites", "paper"].edge_index is edges
    assert found.node_types == ["paper"]
