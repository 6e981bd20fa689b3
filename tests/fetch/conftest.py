"""Fixtures for tests of fetching."""

import pytest

from tests.fetch import faulty


@pytest.fixture
def nothing_left():
    """Fail if a test leaves a process, thread, descriptor or mapping behind."""
    with faulty.all_gone():
        yield
