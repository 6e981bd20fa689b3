"""When a thread pays, decided from invented times."""

import pytest

from gpuloader.watch.pace import LONG, PAYS, Pace

SHORT = PAYS // 4
MILLISECOND = 1_000_000


def run(pace, steps, read, step, *, contention=0):
    """Run a loop whose reads and steps take the given nanoseconds; with two threads both take longer."""
    chosen = []
    for _ in range(steps):
        if pace.threaded:
            pace.note_read(read + contention)
            chosen.append(pace.note_step(step + contention))
        else:
            chosen.append(pace.note_step(step, read))
    return chosen


@pytest.mark.parametrize(("read", "step"), [(SHORT, SHORT), (SHORT, LONG), (LONG, SHORT)])
def test_where_there_is_little_to_hide_nothing_is_handed_over(read, step):
    assert run(Pace(), 50, read, step)[-20:] == [False] * 20


@pytest.mark.parametrize(("read", "step"), [(2 * PAYS, 2 * PAYS), (MILLISECOND, LONG), (LONG, LONG)])
def test_where_there_is_something_to_hide_a_thread_reads(read, step):
    assert all(run(Pace(), 50, read, step))
    assert all(run(Pace(threaded=False), 50, read, step)[10:])


def test_the_choice_follows_the_loop():
    pace = Pace()
    assert not any(run(pace, 50, MILLISECOND, SHORT)[20:])
    assert all(run(pace, 50, MILLISECOND, 8 * MILLISECOND)[5:])
    assert not any(run(pace, 50, MILLISECOND, SHORT)[30:])


def test_waits_for_the_lock_look_like_work_and_are_not_taken_for_it():
    """Two short halves that fight for the lock take long; without a thread it shows that they are short."""
    pace = Pace(threaded=False)
    run(pace, 10, SHORT, SHORT)
    assert not pace.threaded
    pace.threaded = True
    run(pace, 200, SHORT, SHORT, contention=PAYS)
    assert pace.changes <= 2


def test_a_forced_thread_stays_and_is_measured():
    pace = Pace(fixed=True)
    assert all(run(pace, 50, SHORT, SHORT))
    assert (pace.read, pace.step, pace.changes) == (SHORT, SHORT, 0)
