"""Counters, spans and the trace of them."""

import json

import numpy as np
import pytest

from gpuloader import DataLoader, trace
from gpuloader.stats import Span, chrome_trace, span
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


def test_a_trace_may_be_followed_by_another_even_after_a_failure(tmp_path):
    with pytest.raises(KeyError), trace():
        raise KeyError
    with trace(tmp_path / "second.json") as spans:
        list(load(1))
    assert {"fetch", "stage", "wait", "deliver"} <= {one.name for one in spans}
    assert json.loads((tmp_path / "second.json").read_text())["traceEvents"]


def test_an_inner_trace_that_was_refused_does_not_end_the_outer_one():
    with trace() as spans:
        with pytest.raises(RuntimeError, match="already running"), trace():
            pass
        with span("after"):
            pass
    assert [one.name for one in spans] == ["after"]


def test_an_empty_trace_is_valid(tmp_path):
    with trace(str(tmp_path / "empty.json")):
        pass
    assert json.loads((tmp_path / "empty.json").read_text())["traceEvents"] == []


def test_a_trace_that_cannot_be_written_says_so_and_ends(tmp_path):
    with pytest.raises(FileNotFoundError), trace(tmp_path / "absent" / "trace.json"):
        pass
    with trace() as spans:
        pass
    assert spans == []


def test_spans_outside_a_trace_leave_nothing():
    with span("before"):
        pass
    with trace() as spans:
        pass
    assert spans == []


def test_a_span_is_marked_when_its_block_fails():
    with trace() as spans, pytest.raises(KeyError), span("compute"):
        raise KeyError
    assert [one.name for one in spans] == ["compute"]


def test_the_chrome_trace_has_microseconds_and_a_row_a_thread():
    spans = [Span("a", "one", 1_000, 3_500), Span("b", "two", 2_000, 2_000), Span("c", "one", 4_000, 5_000)]
    events = chrome_trace(spans)["traceEvents"]
    rows = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    assert set(rows) == {"one", "two"}
    assert len(set(rows.values())) == 2
    assert [
        (event["name"], event["tid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"
    ] == [("a", rows["one"], 1.0, 2.5), ("b", rows["two"], 2.0, 0.0), ("c", rows["one"], 4.0, 1.0)]


@pytest.mark.parametrize("double_buffer", [True, False])
def test_every_batch_is_fetched_staged_and_delivered_once_in_a_trace(double_buffer):
    with trace() as spans:
        list(load(4, use_double_buffer=double_buffer))
    names = [one.name for one in spans]
    assert names.count("stage") == names.count("deliver") == 4


def test_bytes_are_those_of_the_slots_with_their_alignment():
    loader = DataLoader.from_generator(capacity=2)
    loader.set_batch_generator(
        lambda: [[np.zeros((3, 5), np.float32), np.zeros((3,), np.int64)]] * 2, places="cpu"
    )
    list(loader)
    assert loader.stats().nbytes == 2 * (256 + 24)


def test_samples_and_sample_lists_are_counted_as_batches():
    loader = DataLoader.from_generator(capacity=2, return_list=True)
    loader.set_sample_generator(lambda: ((np.zeros(8),) for _ in range(7)), 3, drop_last=False, places="cpu")
    list(loader)
    assert (loader.stats().batches, loader.stats().nbytes) == (3, 7 * 64)
    loader.set_sample_list_generator(lambda: [[(np.zeros(8),)] * 2] * 4, places="cpu")
    list(loader)
    assert (loader.stats().batches, loader.stats().nbytes) == (7, 15 * 64)
