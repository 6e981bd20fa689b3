"""A dataset that tells its workers apart; imports NumPy alone, as does the process that times a start."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


class Whose:
    """Small samples that name the process which made them."""

    def __init__(self, length: int) -> None:
        self.rows = np.random.default_rng(0).random((length, 32), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.rows[index], np.int64(os.getpid())
