"""A dataset that identifies its workers; imports only NumPy, so as not to affect the timed start."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


class Whose:
    """Small samples, each with the ID of the process that made it."""

    def __init__(self, length: int) -> None:
        self.rows = np.random.default_rng(0).random((length, 32), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.rows[index], np.int64(os.getpid())
