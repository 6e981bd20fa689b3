"""Parquet files for tests to read; importing this module skips the tests without pyarrow."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

COLUMNS = ["label", "image", "even", "name"]
SHUFFLED = {"shuffle": True, "shuffle_buffer": 30}
BOTH_ORDERS = pytest.mark.parametrize("options", [{}, SHUFFLED], ids=["in order", "shuffled"])


def make_table(start, stop, **columns):
    numbers = np.arange(start, stop)
    pixels = pa.array(np.repeat(numbers, 6).astype(np.float32))
    return pa.table(
        {
            "label": numbers,
            "image": pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pixels, 3), 2),
            "even": numbers % 2 == 0,
            "name": [f"sample {number}" for number in numbers],
            "words": [[number] * (number % 3) for number in numbers],
            **columns,
        }
    )


def write_files(folder):
    """Write two files with 100 rows in groups of 8, and return their paths."""
    paths = [folder / f"{number}.parquet" for number in range(2)]
    for number, path in enumerate(paths):
        pq.write_table(make_table(number * 50, number * 50 + 50), path, row_group_size=8)
    return paths
