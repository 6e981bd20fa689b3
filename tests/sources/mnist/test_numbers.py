import json
import random

import numpy as np
import pytest

from gpuloader.sources.mnist.digits import parse_row


@pytest.mark.parametrize("separator", [", ", ","])
def test_rows_equal_what_json_reads(separator: str) -> None:
    chance = random.Random(1)
    for _ in range(40):
        digits = ["".join(chance.choices("0123456789", k=chance.randint(1, 15))) for _ in range(50)]
        row = separator.join(f"0.{one}" for one in digits)
        parsed = parse_row(row.encode(), 50)
        assert parsed.dtype == np.float32
        np.testing.assert_array_equal(parsed, np.array(json.loads(f"[{row}]"), "f4"))


def test_every_grey_level_is_exact() -> None:
    levels = [k / 256 for k in range(256)]
    parsed = parse_row(json.dumps(levels)[1:-1].encode(), 256)
    assert (parsed * 256).tolist() == list(range(256))


@pytest.mark.parametrize(
    "row",
    [
        b"0.0, 1.0", b"0, 1", b"0.0,  0.5", b"0.0 , 0.5", b"0.0, 0.1234567890123456",
        b" 0.25 ,\t0.10000000001 ", b" 0.25 ,\r\n1e-2 ", b"0.1234567890123456789, 1.0",
        b"5E-1,0.5e+0", b"0.0, 1e-400",
    ],
)  # fmt: skip
def test_a_row_takes_any_notation_of_json(row: bytes) -> None:
    assert parse_row(row, 2).tolist() == np.array(json.loads(b"[" + row + b"]"), "f4").tolist()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"0.0, NaN", "got nan at position 1"),
        (b"0.0, Infinity", "got inf at position 1"),
        (b'0.0, "1"', "only numbers"),
        (b"[0.0, 0.5", "only numbers.*'\\[0.0'"),
        (b"0.0, 0..5", "only numbers"),
        (b"0.0, 1 2", "only numbers"),
        (b"0.0\n0.5, 0.5", "only numbers"),
        (b"0.0, ", "only numbers"),
        (b",", "only numbers"),
        (b"0.0, \xff", "only numbers"),
        (b"0.0, 1.5", "got 1.5 at position 1"),
        (b"-0.1, 0.5", "got -0.1 at position 0"),
        (b"0.0, 1e999", "got inf at position 1"),
        (b"0.0, 1" + b"0" * 5000, "got inf at position 1"),
        (b"0.0", "expected 2 numbers, got 1"),
        (b"0.0, 0.5, 0.5", "expected 2 numbers, got 3"),
        (b"", "expected 2 numbers, got 0"),
    ],
)
def test_a_wrong_row_is_described(row: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_row(row, 2)
