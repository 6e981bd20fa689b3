"""``gpuloader doctor``: its output as a table and as JSON, and its exit code."""

import json
from functools import partial

import pytest

from gpuloader.cli.doctor import render
from gpuloader.doctor import facts, findings
from gpuloader.doctor.findings import Finding, Report
from gpuloader.errors import install_command
from tests.cli import running
from tests.doctor.machines import COPIES, Trials, cuda, write_driver


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """Run the command on a fake machine with the given packages, driver and trial answers."""

    def run(*arguments, installed=("numpy",), driver=None, **answers):
        if driver:
            write_driver(tmp_path, driver)
        monkeypatch.setattr(facts, "installed_distributions", lambda: dict.fromkeys(installed, "14.2.0"))
        examine = partial(findings.examine, root=tmp_path, attempt=Trials(**answers))
        with monkeypatch.context() as patched:
            patched.setattr(findings, "examine", examine)
            return running.invoke("doctor", *arguments)

    return run


GPU = {"installed": ("numpy", "cupy-cuda13x"), "driver": "580.65.06", "gpus": cuda()}
OTHER = {**GPU, "gpus": cuda(driver=12040, devices=(), failure="cudaErrorInsufficientDriver")}
REFUSED = {**GPU, "copies": {**COPIES, "pinned": 0.0, "refusal": "out of memory"}}


@pytest.mark.parametrize(
    ("arguments", "machine", "code"),
    [
        ([], {}, 0),
        (["--place", "cpu"], {}, 0),
        (["--place", "gpu:0"], {}, 1),
        ([], GPU, 0),
        (["--place", "gpu:0"], GPU, 0),
        (["--place", "gpu_pinned"], GPU, 0),
        (["--place", "gpu:1"], GPU, 1),
        ([], OTHER, 1),
        (["--place", "cpu"], OTHER, 0),
        ([], REFUSED, 0),
        ([], {**GPU, "copies": "no answer within 60 s"}, 1),
        ([], {"worker": "no answer within 60 s"}, 1),
    ],
)
def test_the_exit_code_says_whether_a_loader_would_work(invoke, arguments, machine, code):
    shown = invoke(*arguments, "--json", **machine)
    assert shown.exit_code == code
    assert shown.stderr == ""
    found = json.loads(shown.stdout)
    assert any(one["verdict"] == "bad" for one in found) == (code == 1)
    assert {"section", "name", "value", "verdict", "advice"} == set(found[0])
    assert all(one["advice"] for one in found if one["verdict"] != "good")


def test_the_table_fits_eighty_columns_and_says_what_to_do(invoke):
    shown = invoke("--place", "gpu:0")
    assert shown.exit_code == 1
    assert max(map(len, shown.stdout.splitlines())) <= 80
    words = " ".join(shown.stdout.split())
    for word in ("Software", "GPU", "Processors", "Memory", "✗", "✓", install_command("cuda13")):
        assert word in words
    assert "A loader would fail here: 2 problems" in shown.stdout


def test_a_wide_screen_is_not_filled_and_a_narrow_one_shows_what_was_found(invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    assert 80 < max(map(len, invoke().stdout.splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "20")
    (line,) = [line for line in invoke().stdout.splitlines() if "NumPy" in line]
    assert line.split()[2][0].isdigit()


def test_a_refused_lock_is_told_with_the_limit_that_may_be_the_cause(invoke, monkeypatch):
    monkeypatch.setattr(facts, "read_limit", lambda name: 8 << 20)
    findings = {one["name"]: one for one in json.loads(invoke("--json", **REFUSED).stdout)}
    assert findings["pinning"]["verdict"] == "note"
    assert findings["memlock limit"]["value"] == "8.0 MiB"
    assert "ulimit -l" in findings["memlock limit"]["advice"]


@pytest.mark.parametrize(
    ("verdicts", "summary"),
    [
        (["good"], "Everything a loader needs works here."),
        (["good", "note", "note"], "A loader works here; 2 notes above."),
        (["bad", "note"], "A loader would fail here: 1 problem and 1 note above."),
        (["bad"], "A loader would fail here: 1 problem above."),
    ],
)
def test_the_summary_counts(verdicts, summary):
    findings = tuple(Finding("name", "value", verdict, "advice") for verdict in verdicts)
    assert render(Report({"Title": findings})).splitlines()[-1] == summary
