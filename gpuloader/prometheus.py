"""A loader's statistics as Prometheus metrics, through the prometheus-client package (extra ``prometheus``).

| metric | meaning |
|---|---|
| ``gpuloader_steps_total`` | steps delivered |
| ``gpuloader_batches_total``, ``gpuloader_bytes_total`` | batches staged, and their bytes |
| ``gpuloader_seconds_total`` | where the time went, one ``part`` each: see `LoaderStats` |
| ``gpuloader_slots``, ``gpuloader_slots_in_use`` | host slots, and those in use |

Every metric has the label ``loader``, the name given to `export`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from gpuloader.base.errors import missing_package
from gpuloader.watch.measured import Measured

__all__ = ["export"]

COUNTERS = {
    "steps": "Steps delivered.",
    "batches": "Batches staged.",
    "nbytes": "Bytes of the batches staged.",
}
GAUGES = {
    "slots": "Host slots of the latest epoch.",
    "slots_in_use": "Host slots being filled, waiting, under copy or held.",
}
PARTS = ("fetch", "stage", "stall", "copy", "startup", "wait", "transfer", "compute")

_collectors: WeakKeyDictionary[Any, LoaderCollector] = WeakKeyDictionary()


class LoaderCollector:
    """Gives the present statistics of its loaders whenever they are asked for; costs nothing in between.

    Loaders are not kept alive: one that is gone is no longer told of.
    """

    def __init__(self) -> None:
        self.loaders: WeakValueDictionary[str, Measured] = WeakValueDictionary()

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all loaders; prometheus-client calls it for each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        named = {name: loader.stats() for name, loader in sorted(self.loaders.items())}
        for attribute, text in COUNTERS.items():
            counter = CounterMetricFamily(_metric_name(attribute), text, labels=["loader"])
            for loader, stats in named.items():
                counter.add_metric([loader], getattr(stats, attribute))
            yield counter
        seconds = CounterMetricFamily("gpuloader_seconds", "Where the time went.", labels=["loader", "part"])
        for loader, stats in named.items():
            for part in PARTS:
                seconds.add_metric([loader, part], getattr(stats, part))
        yield seconds
        for attribute, text in GAUGES.items():
            gauge = GaugeMetricFamily(_metric_name(attribute), text, labels=["loader"])
            for loader, stats in named.items():
                gauge.add_metric([loader], getattr(stats, attribute))
            yield gauge


def _metric_name(attribute: str) -> str:
    return f"gpuloader_{'bytes' if attribute == 'nbytes' else attribute}"


def export(loader: Measured, name: str, registry: Any = None) -> None:
    """Add a loader's statistics to a Prometheus registry, under a name.

    Parameters
    ----------
    loader : DataLoader
        Not kept alive by this: its metrics end with it.
    name : str
        Value of the label ``loader``; a later loader of the same name takes its place.
    registry : prometheus_client.CollectorRegistry or None
        None: the package's default one.

    Raises
    ------
    TypeError
        This is no loader, or the name no string.
    MissingPackage
        prometheus-client is not installed: ``pip install 'gpuloader[prometheus]'``.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise missing_package("exporting metrics", "prometheus-client", "prometheus") from error
    if not isinstance(loader, Measured):
        raise TypeError(f"export takes a loader, got {type(loader).__name__}")
    if not isinstance(name, str):
        raise TypeError(f"the name of a loader must be a string, got {type(name).__name__}")
    registry = REGISTRY if registry is None else registry
    collector = _collectors.get(registry)
    if collector is None:
        collector = _collectors[registry] = LoaderCollector()
        registry.register(collector)
    collector.loaders[name] = loader
