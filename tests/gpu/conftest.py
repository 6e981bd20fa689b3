"""Tests here need a GPU: without a usable one they are skipped when collected, and for no other reason."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def missing():
    """Return why no GPU can be used, or None if one can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not importable: {error}"
    return None if cupy.cuda.is_available() else "no CUDA device is here"


def pytest_collection_modifyitems(items):
    reason = missing()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
