"""Traces: what each thread did and when, as spans and in the Chrome trace event format."""

import collections
import itertools
import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import trace
from gpuloader.errors import MissingPackage
from gpuloader.testing import simulated_places
from gpuloader.watch.meter import Span, chrome_trace, span
from tests.loading import load, read_batches
from tests.rank_loaders import Stream
from tests.watch.loops import Waiting, read_zeros


def events_in(path):
    return json.loads(path.read_text())["traceEvents"]


def rows_of(events):
    """Return the number of each row by its name, in order."""
    return {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}


@pytest.mark.parametrize("places", ["cpu", simulated_places(2)], ids=["cpu", "simulated"])
def test_a_trace_tells_who_did_what(tmp_path, places):
    path = tmp_path / "trace.json"
    with trace(path) as spans:
        for _ in read_zeros(4, places):
            with span("compute"):
                pass
    copies = set() if places == "cpu" else {"copy"}
    assert {one.name for one in spans} == {"fetch", "stage", "wait", "deliver", "step", "compute"} | copies
    assert {one.thread for one in spans if one.name == "stage"} == {"gpuloader-reader"}
    assert {one.thread for one in spans if one.name in ("compute", "step", "deliver")} == {"MainThread"}
    streams = {one.thread for one in spans if one.name == "copy"}
    assert streams == ({f"simulated:{n} copies" for n in range(2)} if copies else set())
    assert all(one.start <= one.end for one in spans)
    named = rows_of(events_in(path))
    assert set(named) == {"MainThread", "gpuloader-reader"} | streams
    complete = [event for event in events_in(path) if event["ph"] == "X"]
    assert len(complete) == len(spans)
    assert all(event["dur"] >= 0 and event["tid"] in named.values() for event in complete)


def test_there_is_one_trace_at_a_time_and_none_before_or_afterwards():
    with span("before"):
        pass
    with trace() as spans:
        with pytest.raises(RuntimeError, match="already running"), trace():
            pass
        with span("within"):  # the trace that was refused does not end the other
            pass
    list(read_zeros())
    assert [one.name for one in spans] == ["within"]


def test_a_trace_is_written_when_the_block_fails_and_may_be_followed_by_another(tmp_path):
    with pytest.raises(KeyError), trace(tmp_path / "trace.json") as spans, span("compute"):
        raise KeyError
    assert [one.name for one in spans] == ["compute"]
    assert "compute" in (tmp_path / "trace.json").read_text()
    with trace(tmp_path / "second.json") as spans:
        list(read_zeros(1))
    assert {"fetch", "stage", "wait", "deliver"} <= {one.name for one in spans}
    assert len(events_in(tmp_path / "second.json")) > len(spans)
    with trace(str(tmp_path / "empty.json")):
        pass
    assert [event["ph"] for event in events_in(tmp_path / "empty.json")] == ["M"]


def test_a_trace_that_cannot_be_made_says_so_before_the_block_and_ends(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    entered = []
    for error, message, asked in (
        (FileNotFoundError, "absent", {"path": tmp_path / "absent" / "trace.json"}),
        (MissingPackage, r"pip install '.*\[nvtx\]'", {"nvtx": True}),
    ):
        with pytest.raises(error, match=message), trace(**asked):
            entered.append(1)
        with trace() as spans:
            pass
        assert entered == spans == []


def test_a_thread_may_add_a_span_while_the_trace_is_converted():
    """A worker that is in the middle of a sample when the trace ends still adds its span."""

    class Growing(list):
        def __iter__(self):
            yield from super().__iter__()
            self.append(Span("fetch", f"late {len(self)}", 1, 2))

    events = chrome_trace(Growing([Span("compute", "MainThread", 1, 2)]))["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["compute"]


def test_the_chrome_trace_has_microseconds_and_a_row_a_thread():
    spans = [Span("a", "one", 1_000, 3_500), Span("b", "two", 2_000, 2_000), Span("c", "one", 4_000, 5_000)]
    events = chrome_trace(spans)["traceEvents"]
    assert rows_of(events) == {"one": 0, "two": 1}
    complete = [event for event in events if event["ph"] == "X"]
    found = [(event["name"], event["tid"], event["ts"], event["dur"]) for event in complete]
    assert found == [("a", 0, 1.0, 2.5), ("b", 1, 2.0, 0.0), ("c", 0, 4.0, 1.0)]


@pytest.mark.parametrize("double_buffer", [True, False])
def test_every_batch_is_staged_and_delivered_once_and_a_step_is_the_time_between_two(double_buffer):
    with trace() as spans:
        for _ in read_zeros(4, use_double_buffer=double_buffer):
            time.sleep(0.002)
    steps = [one.end - one.start for one in spans if one.name == "step"]
    names = [one.name for one in spans]
    assert names.count("stage") == names.count("deliver") == len(steps) == 4
    assert min(steps) >= 2_000_000


def test_rows_are_sorted_consumer_first_then_workers_by_number_then_copy_streams():
    rows = ["gpu:0 copies", "gpuloader-worker-10", "gpuloader-worker-9", "MainThread", "gpuloader-reader"]
    events = chrome_trace([Span("x", row, 5, 6) for row in rows])["traceEvents"]
    assert [*rows_of(events)] == [rows[number] for number in (3, 4, 2, 1, 0)]
    indices = [event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"]
    assert indices == sorted(indices)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_loops_over_two_loaders_do_not_overlap_on_a_row(worker_type, tmp_path):
    loaders = [load(Waiting(24), batch_size=4, num_workers=2, worker_type=worker_type) for _ in range(2)]
    with trace(tmp_path / "trace.json") as spans:
        for _ in zip(*loaders, strict=True):
            time.sleep(0.001)
    rows = collections.defaultdict(list)
    events = events_in(tmp_path / "trace.json")
    for event in events:
        if event["ph"] == "X":
            rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, rows.values())) == len(spans)
    rounding = 1e-3
    for row in rows.values():
        for one, other in itertools.combinations(sorted(row), 2):
            apart = one[1] <= other[0] + rounding
            within = other[1] <= one[1] + rounding or one[0] >= other[0] - rounding
            assert apart or within
    named = [event for event in events if event["name"] == "thread_name"]
    assert len(named) == len(rows_of(events)) == len(rows)


KNOWN_PHASES = {"M": {"name", "pid", "tid", "args"}, "X": {"name", "cat", "pid", "tid", "ts", "dur"}}


def test_every_event_has_what_the_format_asks_for(tmp_path):
    """The fields of complete and metadata events, as the Chrome trace event format defines them."""
    with trace(tmp_path / "trace.json"):
        list(read_zeros(3))
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        assert set(event) == KNOWN_PHASES[event["ph"]] | {"ph"}
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] == "M" or (event["ts"] >= 0 and event["dur"] >= 0)
    complete = [event["ts"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert complete == sorted(complete)


class Waited(Stream):
    def __iter__(self):
        return map(Waiting(self.count).__getitem__, super().__iter__())


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("kind", [Waiting, Waited])
def test_each_worker_has_a_row_of_its_own(worker_type, kind):
    with trace() as spans:
        list(load(kind(24), batch_size=4, num_workers=2, worker_type=worker_type))
    rows = {one.thread for one in spans if one.name == "fetch"}
    assert rows == {"gpuloader-worker-0", "gpuloader-worker-1"}
    consumer = [one for one in spans if one.thread == "MainThread"]
    begun, ended = min(one.start for one in consumer), max(one.end for one in consumer)
    assert all(begun <= one.start <= one.end <= ended for one in spans)


def test_nvtx_ranges_surround_each_step_and_the_users_spans_also_where_the_reader_fails(monkeypatch):
    ranges = []
    nvtx = SimpleNamespace(
        push_range=lambda name, domain: ranges.append(("push", name, domain)),
        pop_range=lambda domain: ranges.append(("pop", domain)),
    )
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    with trace(nvtx=True):
        for _ in read_zeros(2):
            with span("train"):
                pass
    names = [call[1] for call in ranges if call[0] == "push"]
    assert names == ["next", "train", "next", "train", "next"]
    assert all(call[-1] == "gpuloader" for call in ranges)
    assert [call[0] for call in ranges] == ["push", "pop"] * 5
    list(read_zeros(2))
    assert len(ranges) == 10

    def failing():
        yield [np.zeros(2)]
        raise KeyError("label")

    with trace(nvtx=True), pytest.raises(KeyError):
        list(read_batches(failing))
    assert [call[0] for call in ranges[10:]] == ["push", "pop"] * 2
