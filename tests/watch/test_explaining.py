"""Explanations of what limits a loop: from invented times, and from real loops that are slow by design."""

import io
import re
import sys
import threading
import time

import pytest

from gpuloader.errors import BadValue
from gpuloader.watch.explaining import explain
from gpuloader.watch.meter import TIMES, Configuration
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy
from gpuloader.watch.stats import LoaderStats
from tests.fakes import wait_until
from tests.loading import load
from tests.watch.loops import Waiting, read_slowly

SAMPLES = Configuration("samples", 0, "process", cores=4)


def times(steps=100, nbytes=100_000, **milliseconds):
    """Return statistics of `steps` steps whose parts take the given milliseconds each."""
    parts = {name: steps * milliseconds.get(name, 0) / 1000 for name in TIMES}
    return LoaderStats(steps, steps, steps * nbytes, **parts, slots=8, slots_in_use=2)


def with_workers(count, reads="samples", **options):
    return Configuration(reads, count, **{"worker_type": "process", "cores": 4, **options})


def test_few_steps_explain_nothing():
    explanation = explain(times(4, wait=3), SAMPLES)
    assert (explanation.bound, explanation.advice) == ("unknown", ())
    assert str(explanation).startswith("4 steps so far;")
    assert str(explain(times(1, wait=3), SAMPLES)).startswith("1 step so far;")
    assert explain(times(), SAMPLES).bound == "unknown"  # a loop without any time divides by nothing
    assert explain(times(wait=1.0), SAMPLES).share == 1.0


def test_an_input_that_keeps_up_leaves_compute():
    explanation = explain(times(wait=0.1, transfer=0.1, compute=4.8, fetch=2.0), with_workers(2))
    assert (explanation.bound, explanation.share) == ("compute", pytest.approx(0.96))
    assert not explanation.advice
    assert "5.0 times as fast" in str(explanation)  # two workers, 1 ms per step each


def test_waiting_without_workers_asks_for_as_many_as_hide_the_input():
    explanation = explain(times(wait=3.0, compute=1.0, fetch=2.9), SAMPLES)
    assert (explanation.bound, explanation.share) == ("input", pytest.approx(0.75))
    assert "4.0 times as fast" in explanation.summary
    assert explanation.advice[0].startswith("num_workers=3")
    assert "done by 1 worker process." in str(explain(times(wait=2.0, fetch=2.9), with_workers(1)))


@pytest.mark.parametrize(
    ("stats", "configuration", "words"),
    [
        # No more workers than cores, more of them where they are busy, and depth where they are idle.
        ({"wait": 50.0, "compute": 1.0, "fetch": 50.0}, SAMPLES, ["num_workers=4"]),
        ({"wait": 50.0, "compute": 1.0, "fetch": 50.0}, SAMPLES._replace(cores=1), ["num_workers=1"]),
        ({"wait": 2.0, "compute": 1.0, "fetch": 6.0}, with_workers(2), ["num_workers=4 (now 2)"]),
        ({"wait": 2.0, "compute": 1.0, "fetch": 1.0}, with_workers(2), ["prefetch_factor", "17%"]),
        ({"wait": 2.0, "compute": 1.0, "fetch": 12.0}, with_workers(4), ["cheaper"]),
        ({"startup": 2.0, "compute": 1.0}, with_workers(2), ["persistent_workers=True", "67%"]),
    ],
)
def test_the_first_advice(stats, configuration, words):
    advice = explain(times(**stats), configuration).advice
    assert [word for word in words if word not in advice[0]] == []
    if configuration.workers == 4:  # a worker on every core
        assert "thread" in advice[1]
    kept = explain(times(**stats), configuration._replace(persistent=True)).advice
    assert not any("persistent" in one for one in kept)


def test_while_auto_is_trying_nothing_is_advised():
    stats = times(wait=2.0, compute=1.0, fetch=6.0)
    chosen = {"tuned": "Chosen.", "since": times(0), "most": 8}
    assert explain(stats, with_workers(2)).advice
    trying = explain(stats, with_workers(2, tuned="Still trying."))
    assert not trying.advice
    assert trying.notes[-1] == "Still trying."
    assert "gained nothing" in explain(stats, with_workers(2, **chosen)).advice[0]
    at_its_end = explain(times(wait=2.0, compute=1.0, fetch=24.0), with_workers(8, **chosen))
    assert "num_workers=16" in at_its_end.advice[0]


def test_a_busy_copy_stream_is_the_bound_whatever_the_host_waited_for():
    explanation = explain(times(nbytes=50_000_000, wait=3.0, compute=1.0, copy=3.9), with_workers(2))
    assert explanation.bound == "copy"
    assert "12.8 GB/s" in explanation.summary
    assert any("uint8" in one for one in explanation.advice)
    several = times(compute=4.0, copy=6.0)  # copies to several places run side by side
    assert explain(several, with_workers(2)).bound == "copy"
    assert explain(several, with_workers(2, places=2)).bound == "compute"


@pytest.mark.parametrize(
    ("reads", "knob"),
    [("samples", "buffer_reader"), ("reader", "double_buffer"), ("arrays", "buffer_reader")],
)
def test_copies_are_only_called_parallel_if_they_are_issued_ahead(reads, knob):
    """A loop that reads nothing ahead issues the next copy only when it asks for the next batch."""
    stats = times(compute=4.1, transfer=0.1, wait=0.1, copy=2.0)
    alone = explain(stats, with_workers(0, reads))
    assert alone.bound == "compute"
    assert "in parallel" not in str(alone)
    assert alone.advice[0].startswith(f"use_{knob}=True")
    ahead = explain(stats, with_workers(1, reads))
    assert "in parallel with your code" in str(ahead)
    assert not ahead.advice


def test_tiny_batches_are_bound_by_handing_over():
    explanation = explain(times(nbytes=64, wait=0.001, transfer=0.02, compute=0.01), SAMPLES)
    assert explanation.bound == "handing over"
    assert "64 bytes" in explanation.summary
    assert "batch_size" in explanation.advice[0]


def test_neither_thread_nor_workers_are_advised_where_they_would_cost_more_than_they_hide():
    for reads in ("samples", "reader"):
        short = times(wait=0.05, transfer=0.005, compute=0.02, fetch=0.05)
        (advice,) = explain(short, with_workers(0, reads)).advice
        assert "batch_size" in advice
    short = times(wait=0.06, transfer=0.005, compute=0.001, fetch=0.03)
    for worker_type in ("thread", "process"):
        (advice,) = explain(short, with_workers(2, worker_type=worker_type)).advice
        assert advice.startswith("num_workers=0")


@pytest.mark.parametrize("shared", [True, False])
def test_threads_that_share_the_interpreter_are_advised_to_be_processes(monkeypatch, shared):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: shared, raising=False)
    stats = times(wait=2.0, compute=1.0, fetch=12.0)
    for count in (2, 4, 8):
        advice = explain(stats, with_workers(count, worker_type="thread")).advice
        assert any(one.startswith("worker_type='process'") for one in advice) is shared
        assert not any("worker_type='thread'" in one for one in advice) or not shared
        processes = explain(stats, with_workers(count)).advice
        assert not any("worker_type='process'" in one for one in processes)


def test_readers_are_advised_of_what_readers_have():
    def advise(stats, count=1, **options):
        return explain(stats, with_workers(count, "reader", **options)).advice

    slow = times(wait=3.0, compute=1.0, fetch=1.0, stage=2.0)
    assert "use_double_buffer=True" in advise(slow, 0)[0]
    slots, threads = advise(slow)
    assert slots.startswith("set_sample_generator")
    assert threads.startswith("reader.xmap_readers")
    short = times(wait=0.05, compute=0.1, fetch=0.09)
    assert "use_double_buffer=True" in advise(short, policy=ReadAheadPolicy(fixed=True))[0]
    assert "use_double_buffer" not in str(advise(short, policy=ReadAheadPolicy()))
    assert "capacity" in advise(times(wait=2.0, compute=3.0, fetch=2.5))[0]


@pytest.mark.parametrize(("workers", "step", "bound"), [(0, 0.0, "input"), (4, 0.04, "compute")])
def test_real_loops_are_explained(workers, step, bound):
    loader = load(Waiting(60, 0.0005), batch_size=5, num_workers=workers, worker_type="thread")
    for _ in loader:
        time.sleep(step)
    assert loader.explain().bound == bound


def test_what_came_before_a_snapshot_does_not_count():
    loader = load(Waiting(60, 0.0005), batch_size=5)
    list(loader)
    assert loader.explain().bound == "input"
    assert loader.explain(since=loader.stats()).bound == "unknown"
    with pytest.raises(ValueError, match="an earlier stats"):
        loader.explain(since=times(100))


def test_a_slow_reader_is_explained_as_a_reader():
    loader = read_slowly(8, 0.002, use_double_buffer=False)
    list(loader)
    assert "use_double_buffer=True" in loader.explain().advice[0]


def test_rich_shows_the_parts_as_bars():
    console_module = pytest.importorskip("rich.console")
    console = console_module.Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(explain(times(wait=3.0, compute=1.0, fetch=2.9), SAMPLES))
    text = console.export_text()
    assert re.search(r"wait +3\.0 ms +█{40}", text)
    assert "→ num_workers=3" in text


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_an_iterable_dataset_is_not_told_of_options_that_it_refuses(workers):
    told = str(explain(times(fetch=200, wait=90, compute=10), with_workers(workers, "items")))
    assert "workers" in told
    assert "'auto'" not in told
    assert "cache=" not in told


def test_a_forced_thread_in_short_steps_is_one_too_many():
    tiny = times(nbytes=64, wait=0.001, transfer=0.02, compute=0.01)
    for reads, option in (("reader", "use_double_buffer"), ("samples", "use_buffer_reader")):
        for fixed in (True, False):
            advice = explain(tiny, with_workers(0, reads, policy=ReadAheadPolicy(fixed=fixed))).advice
            assert any(one.startswith(f"{option}=True") for one in advice) is fixed
            assert fixed or not any(option in one for one in advice)


def test_it_says_how_it_reads_ahead_and_why():
    def explain_loop(choice):
        loader = load(Waiting(12, 0.008), batch_size=1, use_buffer_reader=choice)
        for _ in loader:
            time.sleep(0.008)
        return str(loader.explain())

    told = r"read ahead in a thread: reading takes [\d.]+ ms and your step [\d.]+ ms, and the shorter"
    assert re.search(told, explain_loop(True))
    assert "because the option is 'thread'" in explain_loop("thread")
    assert "Batches are read" not in explain_loop(False)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("kind", "start", "end"), [(io.StringIO, "", "\n"), (Terminal, "\r\x1b[K", "")])
def test_watching_shows_a_running_loop_and_its_sum(kind, start, end):
    file, loader = kind(), load(range(8), batch_size=2, num_workers=1, worker_type="thread")
    with loader.watch(0.01, file):
        for _ in loader:
            length = len(file.getvalue())
            wait_until(lambda: len(file.getvalue()) > length)  # noqa: B023
    rates = r"[\d,]+ steps/s, [\d.]+ (bytes|KB)/s, \d+% waiting, \d+ of \d+ slots in use, 1 worker thread"
    lines = f"({re.escape(start)}{rates}{end}){{4,}}{re.escape(start)}4 steps in all, {rates}\n"
    assert re.fullmatch(lines, file.getvalue())
    assert "gpuloader-watch" not in [thread.name for thread in threading.enumerate()]


def test_an_error_ends_watching_and_a_wrong_interval_is_refused():
    file, loader = io.StringIO(), load(range(8))
    with pytest.raises(ZeroDivisionError), loader.watch(1e12, file):
        raise ZeroDivisionError
    assert file.getvalue().startswith("0 steps in all")
    with pytest.raises(BadValue, match="more than 0"), loader.watch(0):
        pass
