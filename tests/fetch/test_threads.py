"""Worker threads fetch the parts of a batch at once, on every build of Python."""

import time

import numpy as np
import pytest

from gpuloader import DataLoader


class Meeting:
    """Two samples, each of which computes until the other one is being computed as well."""

    def __init__(self):
        self.begun = set()

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.begun.add(index)
        deadline = time.monotonic() + 10
        while len(self.begun) < 2:  # without a wait, during which Python would let other threads run
            if time.monotonic() > deadline:
                raise AssertionError("the other part was not begun")
        return np.full(3, index)


@pytest.mark.parametrize("collate", [None, np.stack], ids=["into the slot", "kept for a collate_fn"])
def test_the_parts_of_a_batch_are_computed_at_once(collate):
    loader = DataLoader(
        Meeting(), places="cpu", batch_size=2, num_workers=2, worker_type="thread", collate_fn=collate
    )
    [batch] = loader
    assert batch.tolist() == [[0] * 3, [1] * 3]
