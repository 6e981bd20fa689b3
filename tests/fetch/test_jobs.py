"""The window of jobs in progress: worker threads reserve slots while the consumer removes jobs."""

import threading

import pytest

from gpuloader.fetch import jobs as fetch_jobs
from gpuloader.fetch.jobs import Window


class EmptyRing:
    """A ring whose free slots are always gone when a job asks for one, except for the slot it waits for."""

    allocated = False

    def take(self):
        return None

    def acquire(self, nbytes):
        return object()

    def fit(self, slot, nbytes):
        pass

    def release(self, slot):
        pass


@pytest.mark.parametrize("attempt", range(8))
def test_workers_reserve_slots_while_the_consumer_removes_jobs_without_a_batch(attempt, monkeypatch):
    """A worker that reserves a slot looks at all other jobs, and nothing may change them meanwhile."""
    count, wrong = 1000, []
    monkeypatch.setattr(fetch_jobs, "FIRST_JOBS", count)
    window = Window(((number, ()) for number in range(count)), EmptyRing(), count, in_order=False)
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
        assert window.due() is None
    worker.join(30)
    assert wrong == []
    assert list(window.jobs) == jobs[-100:]
