"""What a batch is predicted to take on a GPU, in the guide and beside the figures of the host."""

import json
import re
from pathlib import Path

from benchmarks.gpu.predictions import CONFIGURATIONS, MEMORY, render_predictions

ROOT = Path(__file__).parents[2]


def test_the_guide_has_the_predictions():
    text = (ROOT / "docs/guides/gpus.md").read_text().partition("## What limits the speed")[2]
    rows = re.findall(r"^\| .+? \| ([\d,]+) µs \| ([\d,]+) µs \| (.+) \|$", text, re.M)
    assert len(rows) == len(CONFIGURATIONS)
    for (*times, limited), one in zip(rows, CONFIGURATIONS, strict=True):
        found = [max(one.parts(gpu).items(), key=lambda part: part[1]) for gpu in MEMORY]
        assert times == [f"{seconds * 1e6:,.0f}" for _, seconds in found]
        assert {limited.partition(",")[0]} == {part for part, _ in found}


def test_host_times_are_those_that_were_measured():
    cases = json.loads((ROOT / "benchmarks/results/host-h200.json").read_text())["cases"]
    hosts = {one.title.partition(",")[0]: one.host * 1e6 for one in CONFIGURATIONS}
    measured = {"rows of 100 KB": "from_generator", "cached rows": "cached", "64 MiB": "ready"}
    for title, case in {**measured, "cached and augmented": "cached_augmented"}.items():
        assert abs(hosts[title] - cases[case]["us"]) < 1


def test_a_measurement_confirms_or_refutes():
    case = {"case": "copies of 64 MiB", "rows": {"gpuloader, prefilled slots": {"median": 1300}}}
    report = {"machine": {"gpu": "NVIDIA H100"}, "cases": [case]}
    assert "| link | 1,300 | confirmed |" in render_predictions(report)
    case["rows"]["gpuloader, prefilled slots"]["median"] = 2600
    assert "| link | 2,600 | **refuted** |" in render_predictions(report)
