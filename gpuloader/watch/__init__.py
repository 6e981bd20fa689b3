"""Where the time goes: counters, spans, explanations, and the search for better settings.

In: times that `fetch` and `pipeline` measure. Out: `LoaderStats`, traces, advice. Users read it through a
loader's ``stats()`` and ``explain()``.
"""
