"""Datasets whose samples lie in the columns of a table: data frames, Arrow tables, Hugging Face datasets.

In: a table of any of these libraries; none is imported here before a program uses it.
Out: datasets that return the columns of a batch, so that no row becomes a Python object.
Callers: users, through `TableDataset`; `api`, for tables that are passed directly.
"""
