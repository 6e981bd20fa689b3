"""When a thread pays, decided from invented times."""

import pytest

from gpuloader.watch.read_ahead_policy import LONG, PAYS, SURE, ReadAheadPolicy

SHORT = PAYS // 4
MILLISECOND = 1_000_000


class Loop:
    """A loop whose reads and steps take given nanoseconds, where a thread hides a share of the shorter."""

    def __init__(self, policy, *, hides=1.0):
        self.policy, self.hides = policy, hides

    def run(self, steps, read, step, *, odd=()):
        """Return, for each step, whether a thread read beside it; `odd` steps take 5 ms longer to read."""
        chosen = []
        for number in range(steps):
            chosen.append(self.policy.beside)
            reading, stepping = read + 5 * MILLISECOND * (number in odd), step
            if self.policy.beside:
                cycle = reading + step - int(self.hides * min(reading, step))
                if self.hides < 0:  # each waits for the other, and so seems to take longer
                    reading, stepping = cycle, cycle // 2
                self.policy.note_read(reading, self.policy.changes)
                self.policy.note_step(stepping, cycle - stepping, True)
            else:
                self.policy.see_early(reading)
                self.policy.note_step(step, reading, False)
        return chosen


def share(chosen):
    return sum(chosen) / len(chosen)


@pytest.mark.parametrize(("read", "step"), [(SHORT, SHORT), (SHORT, LONG), (LONG // 2, SHORT)])
def test_where_there_is_little_to_hide_nothing_is_handed_over(read, step):
    assert not any(Loop(ReadAheadPolicy()).run(50, read, step))


@pytest.mark.parametrize(("read", "step"), [(SURE, SURE), (MILLISECOND, LONG), (LONG, LONG)])
def test_where_there_is_something_to_hide_a_thread_reads(read, step):
    assert all(Loop(ReadAheadPolicy()).run(50, read, step)[8:])


def test_not_even_one_step_waits_for_a_long_read():
    assert Loop(ReadAheadPolicy()).run(3, LONG, LONG) == [False, True, True]
    for step in (SHORT, SURE):  # but a first read that only opens the source is no reason for a thread
        assert Loop(ReadAheadPolicy()).run(20, SHORT, step, odd=[0]) == [False, True, *[False] * 18]


def test_the_choice_follows_the_loop():
    loop = Loop(ReadAheadPolicy())
    assert not any(loop.run(50, MILLISECOND, SHORT))
    assert all(loop.run(50, MILLISECOND, 8 * MILLISECOND)[8:])
    assert not any(loop.run(50, MILLISECOND, SHORT)[8:])


@pytest.mark.parametrize("time", [SURE, MILLISECOND, 8 * MILLISECOND])
def test_a_thread_that_hides_nothing_is_given_up(time):
    """Python code on both sides takes as long with a thread as without, and the thread costs something."""
    assert share(Loop(ReadAheadPolicy(), hides=-0.1).run(4000, time, time)) < 0.1


def test_threads_that_fight_for_the_lock_in_turns_are_seen_as_a_whole():
    """Most groups of steps are fast then, because the reader has read ahead; a few slow ones pay for them."""
    policy = ReadAheadPolicy()
    Loop(policy).run(9, SURE, SURE)
    for is_reached in (lambda: policy.trying, lambda: policy.beside):
        while not is_reached():
            Loop(policy).run(1, SURE, SURE)
    for is_slow in (False, True, False, False, True, False):
        for _ in range(3 if is_slow else 8):
            policy.note_read(SURE, policy.changes)
            policy.note_step(SURE, MILLISECOND - SURE if is_slow else SURE // 3, True)
    assert not policy.beside


def test_a_thread_that_began_to_hide_something_is_found_again():
    loop = Loop(ReadAheadPolicy(), hides=-0.1)
    loop.run(200, MILLISECOND, MILLISECOND)
    loop.hides = 1.0
    assert share(loop.run(4000, MILLISECOND, MILLISECOND)[2000:]) > 0.95


def test_a_thread_that_ceased_to_hide_something_is_given_up():
    loop = Loop(ReadAheadPolicy())
    assert share(loop.run(200, MILLISECOND, MILLISECOND)[8:]) > 0.9
    loop.hides = -0.1
    assert not any(loop.run(100, MILLISECOND, MILLISECOND)[20:30])


@pytest.mark.parametrize("hides", [1.0, 0.9])
def test_a_useful_thread_is_hardly_ever_given_up_to_measure(hides):
    assert share(Loop(ReadAheadPolicy(), hides=hides).run(20_000, 8 * MILLISECOND, 8 * MILLISECOND)) > 0.99


def test_a_single_long_read_decides_nothing():
    policy = ReadAheadPolicy()
    assert not any(Loop(policy).run(400, SHORT, 2 * SHORT, odd=range(50, 400, 50)))
    assert policy.changes == 0


def test_a_read_that_began_under_another_decision_is_not_counted():
    policy = ReadAheadPolicy(beside=True)
    policy.note_read(MILLISECOND, policy.changes - 1)
    for _ in range(8):
        policy.note_step(MILLISECOND, 0, True)
    assert policy.read == 0


def test_a_forced_thread_stays_and_is_measured():
    policy = ReadAheadPolicy(fixed=True)
    assert all(Loop(policy).run(50, SHORT, SHORT))
    assert policy.changes == 0
    assert (policy.read, policy.step) == (SHORT, SHORT)
    assert policy.threaded


def test_a_thread_that_may_pay_is_tried_after_a_while_and_much_later_if_the_source_would_stay_in_it():
    loop = Loop(ReadAheadPolicy())
    assert not any(loop.run(100, PAYS, PAYS))
    assert share(loop.run(2000, PAYS, PAYS)[1000:]) > 0.95
    assert not any(Loop(ReadAheadPolicy(bound=True)).run(8000, PAYS, PAYS))
    assert all(Loop(ReadAheadPolicy(bound=True)).run(50, SURE, SURE)[8:])
