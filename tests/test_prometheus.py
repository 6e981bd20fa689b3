"""Statistics as Prometheus metrics, as seen by a scrape."""

import gc
import sys
import threading

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.errors import MissingPackage
from gpuloader.prometheus import export
from gpuloader.watch.meter import TIMES
from tests.loading import read_batches

client = pytest.importorskip("prometheus_client")


@pytest.fixture
def registry():
    return client.CollectorRegistry()


def steps(registry, name):
    return registry.get_sample_value("gpuloader_steps_total", {"loader": name})


def loader(count=4):
    return DataLoader(np.arange(10 * count), places="cpu", batch_size=10)


def test_a_scrape_tells_what_the_loader_has_done_so_far(registry):
    train = loader()
    export(train, "train", registry)
    assert steps(registry, "train") == 0
    list(train)
    told = {
        part: registry.get_sample_value("gpuloader_seconds_total", {"loader": "train", "part": part})
        for part in TIMES
    }
    stats = train.stats()
    assert told == {part: getattr(stats, part) for part in TIMES}
    assert steps(registry, "train") == 4
    assert registry.get_sample_value("gpuloader_bytes_total", {"loader": "train"}) == 40 * 8
    assert registry.get_sample_value("gpuloader_slots", {"loader": "train"}) == stats.slots > 0


def test_several_loaders_share_the_metrics_and_a_later_one_takes_the_name(registry):
    reading = read_batches(lambda: ([np.zeros(4)] for _ in range(5)))
    kept = [(loader(3), "train"), (loader(2), "valid"), (reading, "reader"), (loader(1), "train")]
    for one, name in kept:
        export(one, name, registry)
        list(one)
    assert [steps(registry, name) for name in ("train", "valid", "reader")] == [1, 2, 5]


def test_the_text_is_what_prometheus_reads(registry):
    from prometheus_client.parser import text_string_to_metric_families

    train = loader()
    export(train, "train", registry)
    list(train)
    text = client.generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["gpuloader_steps"].type == "counter"
    assert families["gpuloader_slots_in_use"].type == "gauge"
    assert all(family.documentation for family in families.values())


def test_a_loader_that_is_gone_is_not_kept_and_not_told_of(registry):
    train = loader()
    export(train, "train", registry)
    del train
    gc.collect()
    assert steps(registry, "train") is None


def test_a_scrape_while_other_threads_export_and_drop_loaders(registry):
    kept, wrong, stop = loader(), [], threading.Event()
    export(kept, "kept", registry)

    def scrape():
        try:
            while not stop.is_set():
                assert steps(registry, "kept") == 0
        except BaseException as error:
            wrong.append(error)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        for number in range(300):
            export(loader(), f"dropped {number}", registry)
    finally:
        stop.set()
        scraper.join(60)
    assert wrong == []


def test_what_is_no_loader_and_no_name_is_refused_and_a_missing_package_named(registry, monkeypatch):
    with pytest.raises(TypeError, match="got list"):
        export([], "train", registry)
    with pytest.raises(TypeError, match="got int"):
        export(loader(), 3, registry)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingPackage, match=r"pip install '.*\[prometheus\]'"):
        export(loader(), "train")
