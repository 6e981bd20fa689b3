"""Export a loader's statistics as Prometheus metrics; needs prometheus-client (extra ``prometheus``).

| metric | meaning |
|---|---|
| ``gpuloader_steps_total`` | steps delivered |
| ``gpuloader_batches_total``, ``gpuloader_bytes_total`` | batches staged, and their size in bytes |
| ``gpuloader_seconds_total`` | time spent, by the label ``part``: see `LoaderStats` |
| ``gpuloader_slots``, ``gpuloader_slots_in_use`` | host slots, and how many of them are in use |

Every metric has the label ``loader``: the name passed to `export`.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from gpuloader.errors import import_package
from gpuloader.system.finalizers import LivingKeys, LivingValues
from gpuloader.watch.measured import Measured
from gpuloader.watch.meter import TIMES

__all__ = ["export"]

COUNTERS = {
    "steps": "Steps delivered.",
    "batches": "Batches staged.",
    "nbytes": "Bytes of the staged batches.",
}
GAUGES = {
    "slots": "Host slots of the latest epoch.",
    "slots_in_use": "Host slots being filled, queued, copied or held by the user.",
}

_collectors: LivingKeys[Any, LoaderCollector] = LivingKeys()


class LoaderCollector:
    """A Prometheus collector that reads its loaders' statistics at each scrape and costs nothing in between.

    It keeps no loader alive: a loader that no longer exists is no longer reported.
    """

    def __init__(self) -> None:
        self.loaders: LivingValues[str, Measured] = LivingValues()

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all loaders; prometheus-client calls this for each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        named = {name: loader.stats() for name, loader in sorted(self.loaders.items(), key=itemgetter(0))}
        for family, texts in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for attribute, text in texts.items():
                name = "bytes" if attribute == "nbytes" else attribute
                metric = family(f"gpuloader_{name}", text, labels=["loader"])
                for loader, stats in named.items():
                    metric.add_metric([loader], getattr(stats, attribute))
                yield metric
        seconds = CounterMetricFamily("gpuloader_seconds", "Time spent, by part.", labels=["loader", "part"])
        for loader, stats in named.items():
            for part in TIMES:
                seconds.add_metric([loader, part], getattr(stats, part))
        yield seconds


def export(loader: Measured, name: str, registry: Any = None) -> None:
    """Add a loader's statistics to a Prometheus registry.

    Parameters
    ----------
    loader : DataLoader
        The loader to report. It is not kept alive, and its metrics end with it.
    name : str
        Value of the label ``loader``; a later loader with the same name replaces this one.
    registry : prometheus_client.CollectorRegistry or None
        The registry; None means prometheus-client's default registry.

    Raises
    ------
    TypeError
        `loader` is not a loader, or `name` is not a string.
    MissingPackage
        prometheus-client is not installed: ``pip install '.[prometheus]'``.
    """
    client = import_package("prometheus_client", "exporting metrics", "prometheus", "prometheus-client")
    if not isinstance(loader, Measured):
        raise TypeError(f"export expects a loader, got {type(loader).__name__}")
    if not isinstance(name, str):
        raise TypeError(f"the loader's name must be a string, got {type(name).__name__}")
    registry = client.REGISTRY if registry is None else registry
    collector = _collectors.get(registry)
    if collector is None:
        collector = LoaderCollector()
        _collectors.set(registry, collector)
        registry.register(collector)
    collector.loaders.set(name, loader)
