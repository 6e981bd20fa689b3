"""The tool that tries mutants: which tests it runs, what it leaves behind, and what counts as a mutant."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import is_running
from tests.mutants.belonging import MORE, find_tests, list_modules
from tests.mutants.changes import list_mutants
from tests.mutants.running import ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / "gpuloader").is_dir(), reason="the sources are not here; an installed package is tested"
)


def test_every_module_has_tests_and_every_test_named_for_one_exists():
    modules = [module.relative_to("gpuloader").as_posix() for module in list_modules("gpuloader")]
    kernels = list_modules("kernels")
    folders = {module.rpartition("/")[0] for module in modules}
    assert set(MORE) <= {*modules, *folders, "kernels", *(module.as_posix() for module in kernels)}
    for module in (*list_modules("gpuloader"), *kernels):
        if {*module.parts[:2]} & {"batches", "epoch", "fetch", "kernels", "order", "staging.py"}:
            assert [test for test in find_tests(module) if not (ROOT / test).exists()] == []


def test_a_module_is_a_file_or_a_folder_of_the_package():
    assert list_modules("gpuloader/epoch/lane.py:12") == [Path("gpuloader/epoch/lane.py")]
    assert Path("gpuloader/epoch/lane.py") in list_modules("gpuloader/epoch")
    assert list_modules("gpuloader/kernels/cast.py") == [Path("kernels/cast.py")]
    for wrong in ("gpuloader/nothing.py", "tests/conftest.py"):
        with pytest.raises(SystemExit, match=wrong):
            list_modules(wrong)


LEAVING = """
import subprocess, sys
from tests.mutants.running import ROOT, copied_project
with copied_project() as tree:
    print(tree.parent, flush=True)
    subprocess.run('setsid sleep 60 >/dev/null & echo $!', shell=True)
    assert (tree / 'gpuloader/kernels').is_symlink() == (ROOT / 'gpuloader/kernels').is_symlink()
    raise KeyboardInterrupt
"""


def test_an_interrupt_leaves_no_process_and_no_copy():
    done = subprocess.run(
        [sys.executable, "-c", LEAVING],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    folder, orphan = done.stdout.split()
    assert "KeyboardInterrupt" in done.stderr
    assert not is_running(int(orphan))
    assert not Path(folder).exists()


SOURCE = '''
from __future__ import annotations

def count(items: list[int] | None, most: int = 3) -> int | None:
    """Count."""
    found = 0
    for item in items:
        if item < most:
            found += 1
    report(found)
    return found
'''


def test_mutants_differ_in_what_they_do():
    pytest.importorskip("cosmic_ray", reason="Cosmic Ray is not installed; `make mutants` installs it")
    mutants = list_mutants(SOURCE)
    changes = {(mutant.before, mutant.after) for mutant in mutants}
    assert len(changes) == len(mutants)
    assert {
        ("if item < most:", "if item <= most:"),
        ("if item < most:", "if not item < most:"),
        ("found += 1", "pass"),
        ("report(found)", "pass"),
        ("for item in items:", "for item in []:"),
    } <= changes
    assert not [before for before, _ in changes if before.startswith('"""')]
    for mutant in mutants:
        assert SOURCE.splitlines()[mutant.line - 1].strip() == mutant.before
