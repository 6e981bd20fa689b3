"""The attack finds what it is meant to find, says how to see it again, and finds nothing else."""

import io
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from tests.chaos import campaign
from tests.chaos.attack import Verdict, attack
from tests.chaos.case import GROUP, PROGRAM, Case, Fault
from tests.chaos.drawing import draw_case
from tests.chaos.failing import CALLS
from tests.chaos.judging import judge_end, judge_errors

CTRL_C = Fault("interrupt", act=1, at=2, who=GROUP)
TWO_LOOPS = ("loop", "loop")

SEEN = {
    "early slot": (Case(held=3, read_ahead=False, count=24), "Wrong in act 0"),
    "lost batch": (Case(acts=("resume:1",)), "Wrong in act 0 .resume:1.: (epoch|expected|field)"),
    "thread": (Case(), "left behind: threads .'leaked'"),
    "process": (Case(), "left behind: processes"),
    "descriptor": (Case(), "left behind: descriptors"),
    "file": (Case(), "temporary files are left"),
    "memory": (Case(acts=("loop",) * 4), "the program has grown by"),
    "hang": (Case(), "hang: no end after"),
    "swallowed interrupt": (Case(acts=TWO_LOOPS, count=200, faults=(CTRL_C,)), "exit code|Wrong"),
    "two tracebacks": (Case(workers=1, method="fork"), "the program complains: KeyboardInterrupt"),
    "bare error": (
        Case(acts=TWO_LOOPS, count=200, workers=1, method="fork", faults=(Fault("exit", at=50),)),
        "KeyError in act 1",
    ),
}
"""For each defect a case that shows it, and what its finding says."""
LEAKS = ("thread", "process", "descriptor", "file")  # which one program shows


@pytest.fixture(scope="module")
def verdicts():
    """Return the verdicts on all defects, which are attacked together: most of the time is waiting."""
    leaks = " and ".join(LEAKS)
    cases = {name: replace(case, defect=leaks if name in LEAKS else name) for name, (case, _) in SEEN.items()}
    with ThreadPoolExecutor(4) as pool:
        found = {case: pool.submit(attack, case, patience=0.5) for case in {*cases.values()}}
        return {name: found[case].result() for name, case in cases.items()}


@pytest.mark.parametrize("defect", SEEN)
def test_a_defect_is_found(verdicts, defect):
    verdict = verdicts[defect]
    said = [finding for finding in verdict.findings if re.search(SEEN[defect][1], finding)]
    assert said, (verdict.findings, verdict.details)


def test_a_hang_shows_where_it_is(verdicts):
    assert "in next_step" in verdicts["hang"].details


STRUCK = {"call sendmsg": 0, "call poll": 1, "call close": 1, "line": 700}


@pytest.mark.parametrize("kind", STRUCK)
def test_faults_that_strike_within_the_program(kind):
    if kind in CALLS and shutil.which("cc") is None:
        pytest.skip("no compiler for the library that makes calls fail")
    fault = Fault(kind, act=1, at=STRUCK[kind])
    verdict = attack(Case(acts=TWO_LOOPS, count=60, workers=2, method="fork", faults=(fault,)))
    assert not verdict.findings, verdict.details
    struck = {"call sendmsg": "No space|Cannot allocate", "line": "KeyboardInterrupt"}
    assert re.search(struck.get(kind, ""), verdict.details)


def test_a_sound_program_has_no_findings():
    """The same program as in the first case of a campaign, without its faults; `make chaos` runs many."""
    verdict = attack(replace(draw_case(1, 0), faults=()))
    assert not verdict.findings, verdict.details


def test_a_case_is_a_function_of_seed_and_number():
    cases = [draw_case(3, number) for number in range(200)]
    assert cases == [draw_case(3, number) for number in range(200)]
    assert cases == [Case.of_json(case.to_json()) for case in cases]
    assert len(set(cases)) == 200


EXTRAS = ("program", "remainder", "uneven", "prefetched", "static", "served", "face")


def test_all_kinds_of_everything_are_drawn():
    cases = [draw_case(1, number) for number in range(3000)]
    drawn = {
        "source": {case.source for case in cases},
        "method": {case.method for case in cases if case.workers},
        "place": {(case.place, case.places) for case in cases},
        "act": {act.partition(":")[0] for case in cases for act in case.acts},
        "extra": {tuple(getattr(case, name) for name in EXTRAS) for case in cases},
        "output": {case.output for case in cases},
        "fault": {(fault.kind, fault.who >= 0) for case in cases for fault in case.faults},
    }
    kinds = {"source": 15, "method": 4, "place": 6, "act": 18, "extra": 10, "output": 3, "fault": 41}
    assert {name: len(found) for name, found in drawn.items()} == kinds


def test_a_finding_is_printed_with_the_command_that_repeats_it(monkeypatch):
    monkeypatch.setattr(campaign, "attack", lambda case: Verdict(case, ("wrong",), "details"))
    monkeypatch.setattr(campaign.time, "monotonic", iter(range(100)).__next__)
    with redirect_stdout(io.StringIO()) as printed:
        found = campaign.run_campaign(8, 4, 1)
    assert found
    assert "FINDING wrong" in printed.getvalue()
    assert "-m tests.chaos --case 8:0\n" in printed.getvalue()
    assert draw_case(8, 0).to_json() in printed.getvalue()


def test_a_case_shrinks_to_what_matters():
    drawn = (draw_case(2, number) for number in range(1000))
    case = next(case for case in drawn if case.workers == 3 and case.faults)
    with redirect_stdout(io.StringIO()):
        smallest = campaign.shrink(case, lambda one: one.workers == 3)
    plain = Case(seed=case.seed, workers=3, source=case.source, form=case.form, method=case.method)
    assert smallest == replace(plain, acts=("loop",))


class TestTheJudge:
    def test_one_error_for_each_fault_and_none_before_it_nor_of_another_kind(self):
        case = Case(acts=TWO_LOOPS, workers=1, faults=(Fault("raise"),))
        error = {"act": 1, "error": ["SampleError", "LoaderError"], "text": "in a sample"}
        assert not judge_errors(case, [error])
        assert judge_errors(case, [error, error]) == ["2 errors for 1 faults"]
        early = {"act": 0, "error": ["SampleError", "LoaderError"], "text": ""}
        bare = {"act": 1, "error": ["RuntimeError"], "text": ""}
        assert len(judge_errors(case, [early])) == len(judge_errors(case, [bare])) == 1

    @pytest.mark.parametrize(
        ("kind", "code", "text", "sound"),
        [
            ("interrupt", -2, "Traceback (most recent call last):\nKeyboardInterrupt\n", True),
            ("interrupt", -2, "Traceback (most recent call last):\n" * 2 + "KeyboardInterrupt\n", False),
            ("interrupt", 0, "", False),
            ("kill", -9, "", True),
            ("terminate", -15, "a word", False),
        ],
    )
    def test_the_end_of_a_program(self, kind, code, text, sound):
        fault = Fault(kind, who=PROGRAM)
        case = Case(acts=TWO_LOOPS, faults=(fault,))
        assert (not judge_end(case, code, text, [], [fault])) == sound

    @pytest.mark.parametrize(
        ("source", "more", "sound"), [("zarr", "", True), ("zarr", "a word", False), ("hdf5", "", False)]
    )
    def test_the_lock_of_zarrs_codecs_in_a_worker_that_was_killed(self, source, more, sound):
        case = Case(source=source, workers=1, method="forkserver", acts=("loop", "exit at once:3"))
        text = (
            "resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore "
            "objects to clean up at shutdown\n  warnings.warn('resource_tracker: There appear to be %d '\n"
            "resource_tracker.py:267: UserWarning: resource_tracker: '/mp-jcntoyfs': [Errno 2] No such file "
            "or directory\n  warnings.warn('resource_tracker: %r: %s' % (name, e))\n"
        )
        assert (not judge_end(case, 7, text + more, [], [])) == sound

    @pytest.mark.parametrize(("act", "sound"), [("daemon:0", True), ("exit:3", False)])
    def test_a_read_that_a_daemon_thread_asked_for_at_exit(self, act, sound):
        case = Case(source="zarr", served=True, acts=("loop", act))
        text = (
            "base_events.py:678: RuntimeWarning: coroutine '_runner' was never awaited\n"
            "  self._ready.clear()\n"
            "RuntimeWarning: Enable tracemalloc to get the object allocation traceback\n"
        )
        assert (not judge_end(case, 7, text, [], [])) == sound
