"""Paddle's own loader tests, case by case, in our words; each runs on gpuloader and, if installed, on Paddle.

The cases follow the test files of PaddlePaddle: loaders over datasets and readers, samplers, datasets, reader
decorators, feeders and feeds. Where those train a network, the cases here look at the batches. Where we
differ on purpose, a case asserts both behaviors and names the difference in `differences.py`.
"""

import importlib.util

import pytest

from tests.paddle_suite.libraries import Gpuloader, Paddle

LIBRARIES = [pytest.param(Gpuloader, id="gpuloader")]
if importlib.util.find_spec("paddle"):
    # Paddle warns of what it deprecates and of packages that are missing.
    LIBRARIES.append(pytest.param(Paddle, id="paddle", marks=pytest.mark.filterwarnings("ignore")))


@pytest.fixture(scope="session", params=LIBRARIES)
def lib(request):
    return request.param()


@pytest.fixture
def only_ours(lib):
    """Skip on Paddle, which hangs in the case."""
    if lib.name == "paddle":
        pytest.skip("Paddle hangs")
