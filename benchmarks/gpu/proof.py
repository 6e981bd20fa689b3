"""Check and measure gpuloader on this machine's GPU, and write one page to send with an issue.

python benchmarks/gpu/proof.py [--parts NAME ...] [--minutes 8] [--output FOLDER]

Parts: the doctor, the tests in tests/gpu, the kernels' compilation, the host's time per batch,
compute-sanitizer if it is installed, the benchmarks, and the other tests. Each has its own time limit. What
does not fit into the time is left for the next call, which keeps the parts that have passed, as long as the
code and the machine are the same, and begins with those that have never run. A part that is named runs in any
case; suite stands for all tests.

The folder gets proof.json, the page proof.md, and proof.log with all output. Needs no package to start.

Exit codes: 0, all parts have passed or are skipped; 1, one has failed or was stopped, or none could run; 3,
some are left for another call; 4, as 0, but there is no GPU, so only what needs none has run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu.limited import run_limited
from benchmarks.gpu.proof_page import render_page
from benchmarks.gpu.proof_parts import GROUPS, PARTS, Part

ROOT = Path(__file__).parents[2]
PASSED, FAILED, STOPPED, SKIPPED, LEFT = "passed", "failed", "stopped", "skipped", "not run"
_KEPT_LINES = 60  # of a part's output, in the report
_SECONDS_TO_PROBE = 60.0
_SOURCES = ("gpuloader", "kernels", "tests", "benchmarks")

_MEANINGS = {
    0: "everything has passed",
    1: "some parts have failed or took too long, or none could run; the page says why",
    3: "there was no time for some parts: run the proof again, which keeps those that have passed",
    4: "no GPU can be used here: what needs none has passed, the rest was skipped",
}

Report = dict[str, Any]


def main(arguments: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    """Run the parts that are left, or those that are named; write the report and the page."""
    options = _parse(arguments, parts)
    end = monotonic() + 60 * options.minutes
    options.output.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(options.commit)
    report = load_report(options.output / "proof.json", machine, parts)
    named = {name for given in options.parts or () for name in GROUPS.get(given, (given,))}
    chosen = [part for part in parts if part.name in named] if named else find_left(report, parts)
    print(f"GPU: {machine.get('gpu') or 'none: ' + machine.get('failure', '')}", flush=True)
    for part in chosen:
        report["parts"][part.name] = result = run_part(part, machine, end, options.output / "proof.log")
        times = f"{result['seconds']:.0f} s, {result.get('processor', 0):.0f} s of the processor"
        print(f"{part.name}: {result['result']}, {times}, {result['summary']}", flush=True)
        write(report, options.output, parts)
    write(report, options.output, parts)
    print(f"wrote {options.output / 'proof.md'} and proof.json", flush=True)
    code = find_code(report)
    print(_MEANINGS[code], flush=True)
    return code


def _parse(arguments: Sequence[str] | None, parts: Sequence[Part]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*(part.name for part in parts), *GROUPS]
    parser.add_argument(
        "--parts", nargs="*", choices=names, help="the parts to run (default: all that are left)"
    )
    parser.add_argument("--minutes", type=float, default=7.8, help="minutes for all parts (default: 7.8)")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "gpu-proof", help="folder (default: build/gpu-proof)"
    )
    parser.add_argument("--commit", help="commit to record if git cannot tell")
    return parser.parse_args(arguments)


def describe_machine(commit: str | None) -> dict[str, str]:
    """Return GPU, driver, CuPy, commit and more; without a GPU, ``gpu`` is empty and ``failure`` says why."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS_TO_PROBE,
        )
        machine: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        machine = {"gpu": "", "failure": said[-1] if said else "the machine could not be examined"}
        machine |= {"python": platform.python_version(), "commit": "unknown"}
    return machine | ({"commit": commit} if commit else {})


def _environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def find_fingerprint(machine: dict[str, str], root: Path = ROOT) -> str:
    """Return a digest of the machine and of all code; results are kept only while it stays the same."""
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode())
    for folder in _SOURCES:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".cu", ".cuh"):
                digest.update(f"{file.relative_to(root)} {file.stat().st_size} ".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def load_report(file: Path, machine: dict[str, str], parts: Sequence[Part]) -> Report:
    """Return the report of earlier calls if it is about the same code and machine, else a new one."""
    fingerprint = find_fingerprint(machine)
    try:
        earlier = json.loads(file.read_text())
        kept = earlier["parts"] if earlier["fingerprint"] == fingerprint else {}
    except (OSError, ValueError, KeyError, TypeError):
        kept = {}
    nothing = {"result": LEFT, "seconds": 0.0, "summary": ""}
    return {
        "machine": machine,
        "fingerprint": fingerprint,
        "parts": {part.name: kept.get(part.name, nothing) for part in parts},
    }


def find_left(report: Report, parts: Sequence[Part]) -> list[Part]:
    """Return the parts that have not passed: first those that have never run, then the others."""

    def having(results: Iterable[str]) -> list[Part]:
        return [part for part in parts if report["parts"][part.name]["result"] in results]

    return having([LEFT, SKIPPED]) + having([FAILED, STOPPED])


def run_part(part: Part, machine: dict[str, str], end: float, log: Path) -> dict[str, Any]:
    """Run a part until its own limit, or until `end` if that is earlier, and return its result.

    Its output is appended to `log`.
    """
    rehearses = part.needs_gpu and not machine.get("gpu")
    if rehearses and part.rehearsal is None:
        return _result(SKIPPED, "needs a GPU")
    if missing := part.find_missing():
        return _result(SKIPPED, missing)
    limit = min(part.limit, end - monotonic())
    if limit < min(part.least, part.limit):
        return _result(LEFT, "no time left; run the proof again")
    begun, used = monotonic(), _processor_seconds()
    with tempfile.TemporaryDirectory() as folder, log.open("a+b") as file:
        file.write(f"\n===== {part.name}\n".encode())
        file.flush()
        start = file.tell()
        command = (part.rehearsal if rehearses and part.rehearsal else part.command)(limit, Path(folder))
        code = run_limited(
            command, limit, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=_environment()
        )
        file.seek(start)
        output = file.read().decode(errors="replace")
        figures = part.figures(output, Path(folder))
    seconds, used = monotonic() - begun, _processor_seconds() - used
    if code is None:
        return _result(STOPPED, f"took longer than {limit:.0f} s", seconds, output, figures)
    summary = part.summarize(output) or f"exit code {code}"
    summary += ", without the GPU" * rehearses
    shown = "" if part.page_from is None else _from(output, part.page_from)
    result = _result(FAILED if code else PASSED, summary, seconds, output if code else shown, figures)
    return result | {"processor": round(used, 1)} | ({"code": code} if code else {})


def _processor_seconds() -> float:
    """Return what the parts that have run took of the processor, over all their processes."""
    used = os.times()
    return used.children_user + used.children_system


def _result(
    result: str, summary: str, seconds: float = 0.0, output: str = "", figures: Any = None
) -> dict[str, Any]:
    found = {"result": result, "seconds": round(seconds, 1), "summary": summary}
    if output:
        found["output"] = "\n".join(output.strip().splitlines()[-_KEPT_LINES:])
    return found | ({} if figures is None else {"figures": figures})


def _from(output: str, text: str) -> str:
    """Return the output from the last line that begins with a text; all of it for an empty text."""
    lines = output.splitlines()
    begins = [number for number, line in enumerate(lines) if text and line.startswith(text)]
    return output if not text else "\n".join(lines[begins[-1] :]) if begins else ""


def write(report: Report, folder: Path, parts: Sequence[Part]) -> None:
    """Write the report and its page."""
    (folder / "proof.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    (folder / "proof.md").write_text(render_page(report, [part.name for part in parts]))


def find_code(report: Report) -> int:
    """Return the exit code: see the first lines of this file."""
    results = {result["result"] for result in report["parts"].values()}
    if results & {FAILED, STOPPED} or not results & {PASSED, LEFT}:
        return 1
    if LEFT in results:
        return 3
    return 0 if report["machine"].get("gpu") else 4


if __name__ == "__main__":
    sys.exit(main())
