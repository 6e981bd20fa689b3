"""Fixtures for tests of datasets in files."""

import pytest


@pytest.fixture
def files(tmp_path):
    """Two Parquet files with 100 rows in groups of 8; skip without pyarrow."""
    from tests.sources.files.parquet_files import write_files

    return write_files(tmp_path)


@pytest.fixture
def remote():
    """Skip the test without what reads remote files."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
