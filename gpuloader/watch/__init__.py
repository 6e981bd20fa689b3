"""Measure where the time goes, explain it to the user, and search for better settings.

In: times measured by `fetch`, `collate` and `pipeline`.
Out: `LoaderStats`, traces, and the advice of ``loader.explain()``.
Callers: any room from `collate` up; users, through a loader's ``stats()`` and ``explain()``, and `trace`.
"""
