"""The proof on a GPU: its parts, what it keeps, its time limits, its page; with parts that cost nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import proof, proof_parts
from benchmarks.gpu.proof_page import render_page
from benchmarks.gpu.proof_parts import PARTS, Part
from tests.processes import is_running

ROOT = Path(__file__).parents[2]
MACHINE = {"gpu": "Card 9", "driver": "580.1", "cupy": "14.2", "commit": "abc123", "python": "3.12"}


def part(name, code, **options):
    """Return a part that runs Python code."""
    options = {"limit": 60.0, "least": 0.0} | options
    return Part(name, lambda limit, folder: [sys.executable, "-c", code, str(folder)], **options)


@pytest.fixture
def prove(tmp_path, monkeypatch):
    """Return a function that runs a proof and returns its exit code and its report."""
    monkeypatch.setattr(proof, "describe_machine", lambda commit: machine)
    monkeypatch.setattr(proof, "find_fingerprint", lambda machine: fingerprint[0])
    machine, fingerprint = dict(MACHINE), ["the code"]

    def run(parts, *arguments, gpu=True, code="the code"):
        fingerprint[0] = code
        machine.update(MACHINE if gpu else {"gpu": "", "failure": "no driver"})
        status = proof.main(["--output", str(tmp_path), *arguments], parts)
        return status, json.loads((tmp_path / "proof.json").read_text())

    run.folder = tmp_path
    return run


def results(report):
    return {name: one["result"] for name, one in report["parts"].items()}


def counting(folder, name, code=""):
    """Return a part that counts how often it ran, in a file."""
    return part(name, f"print('ran', file=open({str(folder / name)!r}, 'a')); {code}")


def count(folder, name):
    return len((folder / name).read_text().splitlines()) if (folder / name).is_file() else 0


def test_everything_passes(prove):
    parts = [part("one", "print('first'); print('12 good')"), part("two", "print('== 3 passed ==')")]
    status, report = prove(parts)
    assert status == 0
    assert results(report) == {"one": "passed", "two": "passed"}
    assert report["machine"] == MACHINE
    assert [one["summary"] for one in report["parts"].values()] == ["12 good", "3 passed"]
    page = (prove.folder / "proof.md").read_text()
    assert page.startswith("# gpuloader on Card 9: 2 of 2 parts passed\n")
    for shown in ("| driver | 580.1 |", "| cupy | 14.2 |", "| commit | abc123 |", "| one | passed |"):
        assert shown in page
    assert "first" not in page
    assert "===== one\nfirst\n12 good\n" in (prove.folder / "proof.log").read_text()


def test_a_failure_shows_the_end_of_its_output(prove):
    parts = [part("bad", "print('start\\n' * 500); print('```'); print('the cause'); raise SystemExit(7)")]
    status, report = prove(parts)
    assert status == 1
    assert report["parts"]["bad"]["code"] == 7
    page = (prove.folder / "proof.md").read_text()
    assert "| bad | **failed** |" in page
    assert "the cause\n````" in page
    assert page.count("start") < 100


def test_parts_that_have_passed_are_kept_and_what_has_never_run_comes_before_what_has_failed(prove):
    order = prove.folder / "order"
    write = f"open({str(order)!r}, 'a').write"
    bad = part("bad", f"{write}('bad '); raise SystemExit(1)")
    good, new = (part(name, f"{write}('{name} ')") for name in ("good", "new"))
    prove([good, bad])
    status, report = prove([good, bad, new])
    assert status == 1
    assert results(report) == {"good": "passed", "bad": "failed", "new": "passed"}
    assert order.read_text() == "good bad new bad "


def test_a_named_part_runs_in_any_case_and_no_other_does_and_other_code_is_proved_anew(prove):
    parts = [counting(prove.folder, "one"), counting(prove.folder, "two")]
    prove(parts)
    assert prove(parts, "--parts", "two")[0] == 0
    assert [count(prove.folder, name) for name in ("one", "two")] == [1, 2]
    assert prove([*parts, counting(prove.folder, "three")], "--parts", "one")[0] == 3
    prove(parts, code="other code")
    assert [count(prove.folder, name) for name in ("one", "two")] == [3, 3]


def test_the_suite_stands_for_all_tests(prove):
    parts = [counting(prove.folder, name) for name in ("gpu-tests", "tests", "doctor")]
    _, report = prove(parts, "--parts", "suite")
    assert results(report) == {"gpu-tests": "passed", "tests": "passed", "doctor": "not run"}


def test_a_part_that_takes_too_long_is_stopped_with_what_it_started(prove):
    started = prove.folder / "started"
    child = "import time; time.sleep(600)"
    code = (
        f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"open({str(started)!r}, 'w').write(str(child.pid)); print('so far', flush=True); child.wait()"
    )
    slow = part("slow", code, limit=2.0)
    status, report = prove([slow, part("next", "print('went on')")])
    assert status == 1
    assert results(report) == {"slow": "stopped", "next": "passed"}
    assert report["parts"]["slow"]["summary"] == "took longer than 2 s"
    assert report["parts"]["slow"]["output"] == "so far"
    assert not is_running(int(started.read_text()))


def test_without_time_the_parts_are_left_for_another_call(prove):
    parts = [counting(prove.folder, "one")]
    slow = [part("slow", "", least=600.0, limit=900.0)]
    status, report = prove([*parts, *slow])
    assert status == 3
    assert results(report) == {"one": "passed", "slow": "not run"}
    assert "run the proof again" in report["parts"]["slow"]["summary"]
    assert prove(parts, "--minutes", "0")[0] == 0  # nothing is left
    assert count(prove.folder, "one") == 1


def test_without_a_gpu_only_what_needs_none_runs(prove, capsys):
    parts = [part("free", "", needs_gpu=False), counting(prove.folder, "bound")]
    status, report = prove(parts, gpu=False)
    assert status == 4
    assert results(report) == {"free": "passed", "bound": "skipped"}
    assert not count(prove.folder, "bound")
    assert "no GPU can be used here" in capsys.readouterr().out
    assert (prove.folder / "proof.md").read_text().startswith("# gpuloader without a GPU")
    broken = part("free", "raise SystemExit(1)", needs_gpu=False)
    assert prove([broken], gpu=False, code="broken")[0] == 1


def test_without_a_gpu_a_part_is_rehearsed_if_it_can_be(prove):
    code = "sum(range(10**7)); print('twins')"
    rehearsed = part("tests", "print('kernels')", rehearsal=part("", code).command)
    status, report = prove([rehearsed], gpu=False)
    assert status == 4
    assert report["parts"]["tests"]["summary"] == "twins, without the GPU"
    assert report["parts"]["tests"]["processor"] > 0
    assert prove([rehearsed], code="other")[1]["parts"]["tests"]["summary"] == "kernels"


def test_a_part_whose_packages_are_missing_is_skipped(prove):
    parts = [part("a", "", packages=("no_such_package",)), part("b", "", programs=("no-such-program",))]
    status, report = prove([*parts, part("c", "")])
    assert status == 0
    assert results(report) == {"a": "skipped", "b": "skipped", "c": "passed"}
    assert "pip install no_such_package" in report["parts"]["a"]["summary"]
    assert "no-such-program on the PATH" in report["parts"]["b"]["summary"]
    assert prove(parts, code="without the part that can run")[0] == 1


def test_figures_are_kept_and_shown(prove):
    code = "import sys; print('[1, 2]', file=open(f'{sys.argv[1]}/figures.json', 'w')); print('| a |')"
    options = {"figures": lambda output, folder: proof_parts._read_figures(folder), "page_from": "| a"}
    status, report = prove([part("a", code, **options)])
    assert (status, report["parts"]["a"]["figures"]) == (0, [1, 2])
    assert "| a |" in render_page(report, ["a"])


def test_what_a_page_shows_of_a_part_that_has_passed_and_how_goals_are_counted():
    output = 'progress\n{"a": {"us": 1}}\n'
    assert proof._from(output, "{") == '{"a": {"us": 1}}'
    assert proof._from("**Goals** of old\n**Goals**\nmet", "**Goals**") == "**Goals**\nmet"
    assert (proof._from(output, ""), proof._from(output, "?")) == (output, "")

    goals = "| a | g | 1 | 2 | met |\n| b | g | 3 | 2 | **missed** |\n| c | | | | **not measured** |"
    counted = proof_parts._count_goals(f"**Goals** were\n**Goals**\n{goals}")
    assert counted == "1 goals met, 1 missed, 1 not measured"


def test_the_fingerprint_follows_machine_and_code_and_this_machine_is_described(tmp_path):
    (tmp_path / "gpuloader").mkdir()
    found = {proof.find_fingerprint({"gpu": gpu}, tmp_path) for gpu in "ab"}
    for text in ("", "1"):
        (tmp_path / "gpuloader" / "new.py").write_text(text)
        found.add(proof.find_fingerprint({"gpu": "a"}, tmp_path))
    assert len(found) == 4
    machine = proof.describe_machine("abc")
    assert machine["commit"] == "abc"
    assert machine["gpu"] or machine["failure"]


def test_it_starts_without_any_package():
    command = [sys.executable, "-I", "-S", str(ROOT / "benchmarks" / "gpu" / "proof.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=os.sep)
    assert done.returncode == 0, done.stderr
    assert all(one.name in done.stdout for one in PARTS)


def test_every_part_runs_what_exists(tmp_path):
    for one in PARTS:
        words = one.command(60.0, tmp_path)
        files = [word for word in words if "/" in word and word.startswith(("tests", "bench"))]
        assert all((ROOT / file).exists() for file in files), one.name
        assert one.least <= one.limit < 9 * 60


def test_the_real_doctor(prove):
    [doctor] = [one for one in PARTS if one.name == "doctor"]
    status, report = prove([doctor], gpu=False)
    assert report["parts"]["doctor"]["result"] in ("passed", "failed")
    assert " problems, " in report["parts"]["doctor"]["summary"]
    assert "Software: NumPy" in report["parts"]["doctor"]["output"]
    assert status in (1, 4)
