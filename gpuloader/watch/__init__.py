"""Measure where the time goes, explain it to the user, and search for better settings.

In: times measured by `batches`, `fetch` and `epoch`.
Out: `LoaderStats`, traces, and the advice of ``loader.explain()``.
Callers: any package from `batches` up; users, through a loader's ``stats()`` and ``explain()``, and `trace`.
"""
