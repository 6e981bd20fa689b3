"""Datasets in files, local or remote: Parquet, tar shards, Zarr and HDF5 arrays.

In: paths or URLs.
Out: datasets, whose samples are read when they are needed.
Callers: users; `api`, for the columns of Ray's tables.
"""
