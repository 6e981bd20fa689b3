"""The window of jobs in progress: worker threads reserve slots while the consumer removes jobs."""

import threading
from types import SimpleNamespace

import pytest

from gpuloader.fetch import jobs as fetch_jobs
from gpuloader.fetch.jobs import Window
from gpuloader.staging import Ring
from gpuloader.watch.meter import Meter


@pytest.mark.parametrize("attempt", range(8))
def test_workers_reserve_slots_while_the_consumer_removes_jobs_without_a_batch(attempt, monkeypatch):
    """A worker that reserves a slot looks at all other jobs, and nothing may change them meanwhile.

    The ring's free slots are always gone when a job asks for one, except for the slot it waits for.
    """
    count, wrong, ring = 1000, [], SimpleNamespace(allocated=False, take=lambda: None, fit=lambda *_: None)
    ring.acquire, ring.release = lambda nbytes: object(), lambda slot: None
    monkeypatch.setattr(fetch_jobs, "FIRST_JOBS", count)
    window = Window(((number, ()) for number in range(count)), ring, count, Meter(), in_order=False)
    jobs = [window.next_job() for _ in range(count)]
    begin = threading.Barrier(2)

    def reserve():
        begin.wait()
        try:
            for job in jobs[-100:]:
                window.reserve(job, 8)
        except BaseException as error:
            wrong.append(error)

    worker = threading.Thread(target=reserve)
    worker.start()
    begin.wait()
    for job in jobs[:-100]:
        job.finish(None)  # a worker that has no items left ends its jobs like this
        assert window.deliver() is None
    worker.join(60)
    assert wrong == []
    assert list(window.jobs) == jobs[-100:]


NBYTES = 100


def plan(count, error=None):
    yield from ((number, (number,)) for number in range(count))
    if error is not None:
        raise error


def open_window(count=9, slots=9, ahead=3, in_order=True, error=None, meter=None):
    ring = Ring(slots, 1)
    ring.release(ring.acquire(NBYTES))  # reserves its memory
    return Window(plan(count, error), ring, ahead, meter or Meter(), in_order=in_order)


def finish(window, job):
    """End a job with a batch, in its slot."""
    slot, layout = window.reserve(job, NBYTES), SimpleNamespace(nbytes=NBYTES)
    job.finish(SimpleNamespace(slot=slot, layout=layout, skipped=0, number=job.number))


def hand_out(window):
    """Return all jobs that the window hands out now."""
    return list(iter(window.next_job, None))


class TestWindow:
    def test_hands_out_no_more_than_ahead_and_goes_on_when_one_is_delivered(self):
        window = open_window()
        jobs = hand_out(window)
        assert [(job.number, job.indices) for job in jobs] == [(0, (0,)), (1, (1,)), (2, (2,))]
        assert len({job.slot.address for job in jobs}) == 3
        finish(window, jobs[0])
        assert window.deliver() is jobs[0].staged
        assert [job.number for job in hand_out(window)] == [3]
        window.ahead = 5
        assert [job.number for job in hand_out(window)] == [4, 5]

    def test_asks_the_plan_for_no_batch_that_has_no_slot(self):
        window = open_window(slots=2)
        first, _ = hand_out(window)
        finish(window, first)
        window.ring.release(window.deliver().slot)
        assert [job.number for job in hand_out(window)] == [2]

    def test_jobs_that_end_without_a_batch_cost_no_slot(self):
        window = open_window(count=3)
        first, second, third = hand_out(window)
        first.finish(None)  # is skipped
        window.reserve(second, NBYTES)
        second.finish(None, OSError("gone"))
        with pytest.raises(OSError, match="gone"):
            window.deliver()
        assert (list(window.jobs), window.ring.free) == ([third], 8)
        finish(window, third)
        assert window.deliver() is third.staged
        assert window.ring.free == 8

    def test_closing_returns_the_slots_of_jobs_that_nobody_works_on(self):
        window = open_window(count=3)
        jobs = hand_out(window)
        finish(window, jobs[1])
        jobs[2].finish(None, OSError("gone"))
        window.drop(unfinished=False)
        assert (list(window.jobs), window.ring.free) == ([jobs[0]], 8)
        window.drop(unfinished=True)
        assert (list(window.jobs), window.ring.free) == ([], 9)

    def test_the_first_job_to_know_its_size_gives_all_others_their_slots(self):
        window = Window(plan(9), Ring(3, 1), 3, Meter(), in_order=True)
        jobs = hand_out(window)
        assert [job.slot for job in jobs] == [None] * 3
        jobs[1].finish(None, OSError("gone"))  # needs none any more
        slot = window.reserve(jobs[2], NBYTES)
        assert window.reserve(jobs[2], NBYTES) is slot is jobs[2].slot
        assert jobs[1].slot is None
        assert jobs[0].slot not in (None, slot)
        assert window.ring.free == 1
