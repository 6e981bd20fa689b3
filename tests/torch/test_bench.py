"""``gpuloader bench`` measures PyTorch's loader on the same batches."""

import pytest

from gpuloader.cli.bench import CASES
from tests.cli.test_bench import shapes_of

pytest.importorskip("torch")


@pytest.mark.parametrize("name", CASES)
def test_it_yields_as_much_as_the_bare_loop(name):
    assert shapes_of("torch", name) == shapes_of("bare loop", name)
