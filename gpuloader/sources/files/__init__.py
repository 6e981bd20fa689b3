"""Datasets in files, at rest and afar: Parquet, tar shards, Zarr and HDF5 arrays, by path or URL."""
