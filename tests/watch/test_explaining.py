"""Explanations of what limits a loop: from invented times, and from real loops that are slow by design."""

import re
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.watch.explaining import Configuration, explain
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy
from gpuloader.watch.stats import LoaderStats
from tests.loading import load

SAMPLES = Configuration("samples", 0, "process", cores=4)


def times(steps=100, nbytes=100_000, **milliseconds):
    """Return statistics of `steps` steps whose parts take the given milliseconds each."""
    parts = dict.fromkeys(("fetch", "stage", "stall", "copy", "startup", "wait", "transfer", "compute"), 0.0)
    parts.update({name: steps * time / 1000 for name, time in milliseconds.items()})
    return LoaderStats(steps, steps, steps * nbytes, **parts, slots=8, slots_in_use=2)


def with_workers(count, reads="samples", **options):
    return Configuration(reads, count, options.pop("worker_type", "process"), cores=4, **options)


def test_few_steps_explain_nothing():
    explanation = explain(times(4, wait=3), SAMPLES)
    assert explanation.bound == "unknown"
    assert "4 steps" in str(explanation)
    assert not explanation.advice


def test_an_input_that_keeps_up_leaves_compute():
    explanation = explain(times(wait=0.1, transfer=0.1, compute=4.8, fetch=2.0), with_workers(2))
    assert (explanation.bound, explanation.share) == ("compute", pytest.approx(0.96))
    assert not explanation.advice
    assert "5.0 times as fast" in str(explanation)  # two workers, 1 ms per step each


def test_waiting_without_workers_asks_for_as_many_as_hide_the_input():
    explanation = explain(times(wait=3.0, compute=1.0, fetch=2.9), SAMPLES)
    assert explanation.bound == "input"
    assert explanation.share == pytest.approx(0.75)
    assert "4.0 times as fast" in explanation.summary
    assert explanation.advice[0].startswith("num_workers=3")


@pytest.mark.parametrize(
    ("stats", "configuration", "words"),
    [
        # No more workers than cores, more of them where they are busy, and depth where they are idle.
        ({"wait": 50.0, "compute": 1.0, "fetch": 50.0}, SAMPLES, ["num_workers=4"]),
        ({"wait": 50.0, "compute": 1.0, "fetch": 50.0}, replace(SAMPLES, cores=1), ["num_workers=1"]),
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


def test_while_auto_is_trying_nothing_is_advised():
    stats = times(wait=2.0, compute=1.0, fetch=6.0)
    assert explain(stats, with_workers(2)).advice
    trying = explain(stats, with_workers(2, tuned="Still trying."))
    assert not trying.advice
    assert trying.notes[-1] == "Still trying."
    settled = explain(stats, with_workers(2, tuned="Chosen.", since=times(0), most=8))
    assert "gained nothing" in settled.advice[0]
    at_its_end = explain(
        times(wait=2.0, compute=1.0, fetch=24.0), with_workers(8, tuned="Chosen.", since=times(0), most=8)
    )
    assert "num_workers=16" in at_its_end.advice[0]


def test_a_busy_copy_stream_is_the_bound_whatever_the_host_waited_for():
    stats = times(nbytes=50_000_000, wait=3.0, compute=1.0, copy=3.9)
    explanation = explain(stats, with_workers(2))
    assert explanation.bound == "copy"
    assert "12.8 GB/s" in explanation.summary
    assert any("uint8" in one for one in explanation.advice)


def test_copies_to_several_places_run_side_by_side():
    stats = times(wait=0.0, compute=4.0, copy=6.0)
    assert explain(stats, with_workers(2)).bound == "copy"
    assert explain(stats, with_workers(2, places=2)).bound == "compute"


@pytest.mark.parametrize(
    ("reads", "knob"),
    [
        ("samples", "use_buffer_reader=True"),
        ("reader", "use_double_buffer=True"),
        ("arrays", "use_buffer_reader=True"),
    ],
)
def test_copies_are_only_called_parallel_if_they_are_issued_ahead(reads, knob):
    """A loop that reads nothing ahead issues the next copy only when it asks for the next batch."""
    stats = times(compute=4.1, transfer=0.1, wait=0.1, copy=2.0)
    alone = explain(stats, Configuration(reads, 0, "process", cores=4))
    assert alone.bound == "compute"
    assert "in parallel" not in str(alone)
    assert alone.advice[0].startswith(knob)
    ahead = explain(stats, with_workers(1, reads))
    assert "in parallel with your code" in str(ahead)
    assert not ahead.advice


def test_tiny_batches_are_bound_by_handing_over():
    explanation = explain(times(nbytes=64, wait=0.001, transfer=0.02, compute=0.01), SAMPLES)
    assert explanation.bound == "handing over"
    assert "64 bytes" in explanation.summary
    assert "batch_size" in explanation.advice[0]


@pytest.mark.parametrize("reads", ["samples", "reader"])
def test_no_thread_is_advised_where_it_would_cost_more_than_it_hides(reads):
    alone = Configuration(reads, 0, "process", cores=4)
    advice = explain(times(wait=0.05, transfer=0.005, compute=0.02, fetch=0.05), alone).advice
    assert len(advice) == 1
    assert "batch_size" in advice[0]


def test_idle_workers_of_short_steps_are_one_too_many():
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


def test_one_worker_is_one_process():
    assert "done by 1 worker process." in str(explain(times(wait=2.0, fetch=2.9), with_workers(1)))


def test_readers_are_advised_of_what_readers_have():
    slow = times(wait=3.0, compute=1.0, fetch=1.0, stage=2.0)
    assert "use_double_buffer=True" in explain(slow, with_workers(0, "reader")).advice[0]
    advice = explain(slow, with_workers(1, "reader")).advice
    assert "use_double_buffer=False" not in advice[0]
    short = times(wait=0.05, compute=0.1, fetch=0.09)
    forced = with_workers(1, "reader", policy=ReadAheadPolicy(fixed=True))
    assert "use_double_buffer=True" in explain(short, forced).advice[0]
    chosen = with_workers(1, "reader", policy=ReadAheadPolicy())
    assert "use_double_buffer" not in str(explain(short, chosen))
    uneven = times(wait=2.0, compute=3.0, fetch=2.5)
    assert "capacity" in explain(uneven, with_workers(1, "reader")).advice[0]
    assert "set_sample_generator" in advice[0]
    assert "xmap_readers" in advice[1]
    assert not any("num_workers" in one for one in advice)


def test_workers_that_persist_are_not_advised_to():
    kept = explain(times(startup=2.0, compute=1.0), with_workers(2, persistent=True)).advice
    assert not any("persistent" in one for one in kept)


def test_a_loop_without_any_time_is_explained_without_dividing_by_nothing():
    assert explain(times(), SAMPLES).bound == "unknown"
    assert explain(times(wait=1.0), SAMPLES).share == 1.0


class Slow:
    def __init__(self, count=60, wait=0.0005):
        self.count, self.wait = count, wait

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.wait)
        return np.float32(index)


@pytest.mark.parametrize(("workers", "step", "bound"), [(0, 0.0, "input"), (4, 0.01, "compute")])
def test_real_loops_are_explained(workers, step, bound):
    loader = load(Slow(), batch_size=5, num_workers=workers, worker_type="thread")
    for _ in loader:
        time.sleep(step)
    assert loader.explain().bound == bound


def test_what_came_before_a_snapshot_does_not_count():
    loader = load(Slow(), batch_size=5)
    list(loader)
    before = loader.stats()
    assert loader.explain().bound == "input"
    assert loader.explain(since=before).bound == "unknown"


def test_a_snapshot_of_another_loader_is_refused():
    loader = load([1, 2])
    with pytest.raises(ValueError, match="an earlier stats"):
        loader.explain(since=times(100))


def test_a_slow_reader_is_explained_as_a_reader():
    def slow():
        for number in range(8):
            time.sleep(0.002)
            yield [np.full(4, number)]

    loader = DataLoader.from_generator(capacity=2, use_double_buffer=False)
    list(loader.set_batch_generator(slow, places="cpu"))
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


class TestReadingAhead:
    def test_a_forced_thread_in_short_steps_is_one_too_many(self):
        tiny = times(nbytes=64, wait=0.001, transfer=0.02, compute=0.01)
        for reads, option in (("reader", "use_double_buffer"), ("samples", "use_buffer_reader")):
            advice = explain(tiny, with_workers(0, reads, policy=ReadAheadPolicy(fixed=True))).advice
            assert any(one.startswith(f"{option}=True") for one in advice)
            assert not any(
                option in one
                for one in explain(tiny, with_workers(0, reads, policy=ReadAheadPolicy())).advice
            )

    def test_it_says_what_was_chosen_and_why(self):
        told = r"read ahead in a thread: reading takes [\d.]+ ms and your step [\d.]+ ms, and the shorter"
        assert re.search(told, str(explain_loop(use_buffer_reader=True)))
        assert "because the option is 'thread'" in str(explain_loop(use_buffer_reader="thread"))
        assert "Batches are read" not in str(explain_loop(use_buffer_reader=False))


def explain_loop(**options):
    loader = load(Slow(12, 0.008), batch_size=1, **options)
    for _ in loader:
        time.sleep(0.008)
    return loader.explain()


def test_one_step_is_not_called_steps():
    loader = load([1, 2])
    next(iter(loader))
    assert str(loader.explain()).startswith("1 step so far;")
