"""Statistics as Prometheus metrics, as seen by a scrape."""

import gc
import sys
import threading

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.errors import MissingPackage
from gpuloader.prometheus import export
from gpuloader.watch.stats import TIMES
from tests.loading import read_batches

client = pytest.importorskip("prometheus_client")


@pytest.fixture
def registry():
    return client.CollectorRegistry()


def loader(count=4):
    return DataLoader(np.arange(10 * count), places="cpu", batch_size=10)


def test_a_scrape_tells_what_the_loader_has_done_so_far(registry):
    train = loader()
    export(train, "train", registry)
    assert registry.get_sample_value("gpuloader_steps_total", {"loader": "train"}) == 0
    for _ in train:
        pass
    told = {
        part: registry.get_sample_value("gpuloader_seconds_total", {"loader": "train", "part": part})
        for part in TIMES
    }
    stats = train.stats()
    assert told == {part: getattr(stats, part) for part in TIMES}
    assert registry.get_sample_value("gpuloader_steps_total", {"loader": "train"}) == 4
    assert registry.get_sample_value("gpuloader_bytes_total", {"loader": "train"}) == 40 * 8
    assert registry.get_sample_value("gpuloader_slots", {"loader": "train"}) == stats.slots > 0


def test_several_loaders_share_the_metrics_of_a_registry(registry):
    train, valid = loader(3), loader(2)
    export(train, "train", registry)
    export(valid, "valid", registry)
    list(train)
    list(valid)
    assert registry.get_sample_value("gpuloader_steps_total", {"loader": "train"}) == 3
    assert registry.get_sample_value("gpuloader_steps_total", {"loader": "valid"}) == 2


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
    assert registry.get_sample_value("gpuloader_steps_total", {"loader": "train"}) is None


def test_a_later_loader_takes_the_name(registry):
    first, second = loader(3), loader(2)
    for one in (first, second):
        export(one, "train", registry)
        list(one)
    assert registry.get_sample_value("gpuloader_steps_total", {"loader": "train"}) == 2


def test_a_scrape_while_other_threads_export_and_drop_loaders(registry):
    kept, wrong, stop = loader(), [], threading.Event()
    export(kept, "kept", registry)

    def scrape():
        try:
            while not stop.is_set():
                assert registry.get_sample_value("gpuloader_steps_total", {"loader": "kept"}) == 0
        except BaseException as error:
            wrong.append(error)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        for number in range(300):
            export(loader(), f"dropped {number}", registry)
    finally:
        stop.set()
        scraper.join(30)
    assert wrong == []


def test_readers_are_exported_too(registry):
    reading = read_batches(lambda: ([np.zeros(4)] for _ in range(3)))
    export(reading, "reader", registry)
    list(reading)
    assert registry.get_sample_value("gpuloader_steps_total", {"loader": "reader"}) == 3


def test_what_is_no_loader_and_no_name_is_refused(registry):
    with pytest.raises(TypeError, match="got list"):
        export([], "train", registry)
    with pytest.raises(TypeError, match="got int"):
        export(loader(), 3, registry)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingPackage, match=r"pip install '.*\[prometheus\]'"):
        export(loader(), "train")
