"""The parts of `proof.py`: what each runs, for how long, and what its result is in short.

Imports nothing but the standard library, because the Python that runs the proof may lack the rest.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DOCTOR = """
import sys
from gpuloader.doctor.findings import examine
report = examine()
for one in report.to_json():
    print("{verdict:4} {section}: {name}: {value}  {advice}".format(**one).rstrip())
print(report.count("bad"), "problems,", report.count("note"), "notes")
sys.exit(0 if report.works else 1)
"""
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_KERNEL_TESTS = tuple(f"tests/gpu/test_{name}.py" for name in ("kernels", "transforms", "cache"))
_SANITIZER = "compute-sanitizer"
FIGURES = "figures.json"
"""The file into which the benchmarks write, in the folder for temporary files."""


def last_line(output: str) -> str:
    r"""Return the last line that is not empty, without pytest's frame.

    >>> last_line("a\n== 2 passed in 1.00s ==\n\n")
    '2 passed in 1.00s'
    """
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip("= ") if lines else ""


def _count_goals(output: str) -> str:
    goals = output.rpartition("**Goals**")[2]
    met, missed = goals.count("| met |"), goals.count("| **missed** |")
    unknown = len(re.findall(r"[*]{2}(not measured|failed)", goals))
    return f"{met} goals met, {missed} missed, {unknown} not measured"


def _count_kernels(output: str) -> str:
    compiled = len(re.findall(r"^\w+ +sm_\d+ +\d+ entries", output, re.MULTILINE))
    return f"{compiled} compiled, {output.count(' FAILED')} failed"


def _measures_all(output: str) -> str:
    return f"{len(_read_last_line(output) or ())} cases"


def _read_last_line(output: str) -> Any:
    try:
        return json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return None


def _read_figures(folder: Path) -> Any:
    file = folder / FIGURES
    return json.loads(file.read_text()) if file.is_file() else None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the proof, run in a process of its own.

    Attributes
    ----------
    name : str
        Its name on the command line.
    command : callable
        Returns its command, given the seconds that it may take and a folder for temporary files.
    limit : float
        The most seconds that it may take.
    least : float
        The fewest seconds within which it is worth starting.
    needs_gpu : bool
        Whether it runs only where there is a GPU.
    rehearsal : callable or None
        Returns the command of what can be run of it without a GPU, and takes what `command` takes.
    packages, programs : tuple of str
        The Python packages and the programs without which it is skipped.
    summarize : callable
        Returns its result in a few words, given its output.
    figures : callable
        Returns plain data to keep in the report, given its output and the folder for temporary files; or
        None.
    page_from : str or None
        What the last line begins with from which on the page shows its output, even if it passed; '' shows
        all of it, None nothing.
    """

    name: str
    command: Callable[[float, Path], list[str]]
    limit: float
    least: float = 10.0
    needs_gpu: bool = True
    rehearsal: Callable[[float, Path], list[str]] | None = None
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    summarize: Callable[[str], str] = last_line
    figures: Callable[[str, Path], Any] = lambda output, folder: None  # noqa: ARG005
    page_from: str | None = None

    def find_missing(self) -> str:
        """Return what this machine lacks for the part, or ''."""
        lacking = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if lacking:
            return f"needs {', '.join(lacking)}: pip install {' '.join(lacking)}"
        absent = [name for name in self.programs if shutil.which(name) is None]
        return f"needs {', '.join(absent)} on the PATH" if absent else ""


_TESTING = ("numpy", "cupy", "pytest", "pytest_timeout", "hypothesis")

PARTS = (
    Part(
        "doctor",
        lambda limit, folder: [sys.executable, "-c", _DOCTOR],  # noqa: ARG005
        limit=120,
        needs_gpu=False,
        packages=("numpy",),
        page_from="",
    ),
    Part(
        "gpu-tests",
        lambda limit, folder: [*_PYTEST, "--durations=5", "tests/gpu"],  # noqa: ARG005
        limit=300,
        least=60,
        packages=_TESTING,
        # What the host does in the tests of kernels: the twins, which take most of the time.
        rehearsal=lambda limit, folder: [  # noqa: ARG005
            *("env", "GPULOADER_REHEARSE=1", *_PYTEST, "--durations=5", _KERNEL_TESTS[0]),
            *("-k", "not loads and not shuffle and not launches_wait and not another_device"),
        ],
    ),
    Part(
        "kernels",
        lambda limit, folder: [sys.executable, "-m", "benchmarks.gpu.compiling"],  # noqa: ARG005
        limit=420,
        least=60,
        needs_gpu=False,
        packages=("numpy",),
        summarize=_count_kernels,
    ),
    Part(
        "host",
        lambda limit, folder: [sys.executable, "benchmarks/gpu/host.py", "--json"],  # noqa: ARG005
        limit=60,
        least=20,
        needs_gpu=False,
        packages=("numpy", "cupy"),
        summarize=_measures_all,
        figures=lambda output, folder: _read_last_line(output),  # noqa: ARG005
        page_from="{",
    ),
    Part(
        "sanitizer",
        lambda limit, folder: [  # noqa: ARG005
            *(_SANITIZER, "--tool", "memcheck", "--report-api-errors", "no"),
            # For the host's backtraces, it keeps Python's frames, and so batches that the test has dropped.
            *("--show-backtrace", "device"),
            *("--target-processes", "application-only", "--error-exitcode", "1"),
            *(*_PYTEST, "-o", "timeout=1800", *_KERNEL_TESTS),
        ],
        limit=200,
        least=60,
        packages=_TESTING,
        programs=(_SANITIZER,),
    ),
    Part(
        "benchmarks",
        lambda limit, folder: [
            *(sys.executable, "benchmarks/gpu/run.py"),
            *("--minutes", f"{(limit - 10) / 60:.2f}", "--output", str(folder / FIGURES)),
        ],
        limit=470,
        least=90,
        packages=("numpy", "cupy"),
        summarize=_count_goals,
        figures=lambda output, folder: _read_figures(folder),  # noqa: ARG005
        page_from="**Goals**",
    ),
    Part(
        "tests",
        # Of what needs a framework, `make test-frameworks` is the judge, in an environment that has them all.
        lambda limit, folder: [  # noqa: ARG005
            *(*_PYTEST, "-n", "auto", "--dist", "loadfile", "--ignore=tests/gpu"),
            *(f"--ignore=tests/{name}" for name in ("torch", "torch_suite", "frameworks", "keras")),
        ],
        limit=470,
        least=120,
        packages=(*_TESTING, "xdist"),
    ),
)
"""All parts in the order in which they run."""

GROUPS = {"suite": ("gpu-tests", "tests")}
"""Names that stand for several parts."""
