"""Counters, spans and the trace of them."""

import json

import numpy as np
import pytest

from gpuloader import DataLoader, trace
from gpuloader.stats import span
from gpuloader.testing import simulated_places


def load(count=5, **options):
    loader = DataLoader.from_generator(capacity=2, **options)
    return loader.set_batch_generator(lambda: ([np.zeros((4, 8))] for _ in range(count)), places="cpu")


@pytest.mark.parametrize("double_buffer", [True, False])
def test_batches_and_bytes_are_counted_over_epochs(double_buffer):
    loader = load(use_double_buffer=double_buffer)
    for epochs in (1, 2):
        assert len(list(loader)) == 5
        stats = loader.stats()
        assert (stats.batches, stats.nbytes) == (5 * epochs, 5 * epochs * 256)
    assert min(stats.fetch, stats.stage, stats.stall, stats.wait, stats.transfer) >= 0
    assert stats.fetch > 0
    assert stats.wait > 0


def test_a_snapshot_does_not_change():
    loader = load()
    before = loader.stats()
    list(loader)
    assert before.batches == 0
    with pytest.raises(AttributeError):
        before.batches = 3


@pytest.mark.parametrize("places", ["cpu", simulated_places(2)], ids=["cpu", "simulated"])
def test_a_trace_tells_who_did_what(tmp_path, places):
    loader = DataLoader.from_generator(capacity=2)
    loader.set_batch_generator(lambda: ([np.zeros((4, 8))] for _ in range(4)), places=places)
    path = tmp_path / "trace.json"
    with trace(path) as spans:
        for _ in loader:
            with span("compute"):
                pass
    assert {one.name for one in spans} == {"fetch", "stage", "wait", "deliver", "compute"}
    assert {one.thread for one in spans if one.name == "stage"} == {"gpuloader-reader"}
    assert {one.thread for one in spans if one.name == "compute"} == {"MainThread"}
    assert all(one.start <= one.end for one in spans)
    events = json.loads(path.read_text())["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert set(named.values()) == {"MainThread", "gpuloader-reader"}
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(spans)
    assert all(event["dur"] >= 0 and event["tid"] in named for event in complete)


def test_there_is_one_trace_at_a_time_and_none_afterwards():
    with trace() as spans, pytest.raises(RuntimeError, match="already running"), trace():
        pass
    list(load())
    assert spans == []


def test_a_trace_is_written_when_the_block_fails(tmp_path):
    with pytest.raises(KeyError), trace(tmp_path / "trace.json"), span("compute"):
        raise KeyError
    assert "compute" in (tmp_path / "trace.json").read_text()
