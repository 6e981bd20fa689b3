"""Fields of a batch: their names, shapes and dtypes, and values of varying length.

In: field declarations and sample values, as users write them.
Out: checked specs, converted arrays, `Ragged` values.
Callers: any package above it.
"""
