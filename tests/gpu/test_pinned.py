"""Batches in pinned host memory, which the program itself copies to a GPU."""

import numpy as np
import pytest

from gpuloader import DataLoader, Dataset, TensorDataset
from gpuloader.kernels.spin import spin

torch = pytest.importorskip("torch")

from gpuloader.torch import DataLoader as TorchLoader  # noqa: E402 - it imports PyTorch

ROWS = np.arange(40 * 1000, dtype=np.float32).reshape(40, 1000)


class Records(Dataset):
    """Samples with a tensor, a nested number and a text."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"row": torch.from_numpy(ROWS[index]), "of": {"number": index}, "name": f"n{index}"}


class Pair:
    """A batch of a class of one's own, with PyTorch's method for pinning."""

    def __init__(self, samples):
        self.rows = torch.stack([sample["row"] for sample in samples])

    def pin_memory(self):
        self.rows = self.rows.pin_memory()
        return self


def copy_late(batches):
    """Return the batches on the GPU, which copies them only after all of them were dropped."""
    copies = []
    spin(10**8)  # nanoseconds, on the stream on which the copies run, too
    for batch in batches:
        copies.append(batch.to("cuda", non_blocking=True))
        del batch
    return torch.cat(copies).cpu().numpy()


@pytest.mark.parametrize("workers", [0, 2])
def test_copies_that_run_late_read_what_the_batches_held(workers):
    loader = DataLoader(
        TensorDataset(ROWS), places="gpu_pinned", batch_size=2, output="torch", num_workers=workers
    )
    for _ in range(2):
        np.testing.assert_array_equal(copy_late(batch for (batch,) in loader), ROWS)


@pytest.mark.parametrize("workers", [0, 2])
def test_pin_memory_is_that_of_torch(workers):
    loader = TorchLoader(Records(), 4, num_workers=workers, pin_memory=True)
    for batch in loader:
        assert batch["row"].is_pinned()
        assert batch["of"]["number"].is_pinned()
        assert type(batch["name"]) is list
    np.testing.assert_array_equal(copy_late(batch["row"] for batch in loader), ROWS)
    assert not next(iter(TorchLoader(Records(), 4)))["row"].is_pinned()


def test_a_class_of_ones_own_pins_itself():
    loader = TorchLoader(Records(), 4, collate_fn=Pair, pin_memory=True)
    assert all(batch.rows.is_pinned() for batch in loader)


def test_batches_on_the_gpu_need_no_pinning():
    for batch in TorchLoader(Records(), 4, pin_memory=True, places="cuda"):
        assert batch["row"].is_cuda
