"""Wheel and sdist contain the same package, which imports where nothing else is installed."""

import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ["pyproject.toml", "README.md", "LICENSE", "gpuloader", "kernels"]
BESIDE = [".ci", "benchmarks", "docs", "examples", "notebooks", "tests", "Makefile", "MANIFEST.in"]
TREE = [*PACKAGE, *BESIDE, "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"]
UNBUILT = shutil.ignore_patterns("__pycache__", "*.egg-info")


def run(*command, cwd, **environment):
    options = {"env": {**os.environ, **environment}, "capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run([str(part) for part in command], cwd=cwd, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the files to package, so that building leaves nothing behind in the working tree."""
    folder = tmp_path_factory.mktemp("tree")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=UNBUILT)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(tree, tmp_path_factory):
    """A folder with the sdist, and the wheel that is built from it, as installers do that find no wheel."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree, cwd=tree)
    return folder


@pytest.fixture(scope="module")
def sdist(built):
    return next(built.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the installed wheel; NumPy comes from the interpreter that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--no-deps", "--no-index", "--no-compile", "--target", folder, wheel, cwd=folder)
    return folder


def run_installed(installed, code):
    """Run code that sees the installed package but neither the checkout nor its editable install."""
    prelude = """
        import sys
        sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
        sys.path[:] = [entry for entry in sys.path if entry != {root!r}]
    """
    whole = textwrap.dedent(prelude.format(root=str(ROOT))) + textwrap.dedent(code)
    return run(sys.executable, "-P", "-c", whole, cwd=installed.parent, PYTHONPATH=str(installed))


def test_the_wheel_holds_every_module_and_every_file_that_is_read_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [written] = [name for name in names if name.endswith("top_level.txt")]
        assert archive.read(written).split() == [b"gpuloader"]
    folders = [(ROOT / "gpuloader", "gpuloader"), (ROOT / "kernels", "gpuloader/kernels")]
    expected = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for folder, name in folders
        for path in folder.rglob("*")
        if path.suffix in {".py", ".pyi", ".cu", ".cuh", ".npz"}
        and "kernels" not in path.relative_to(folder).parts
    }
    assert {"gpuloader/kernels/spin.cu", "gpuloader/sources/mnist/mnist-5k.npz"} <= expected
    shipped = {name for name in names if ".dist-info/" not in name}
    assert shipped == expected | {"gpuloader/py.typed"}
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_holds_all_there_is_to_test_read_and_run(tree, sdist):
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    there = {
        path.relative_to(tree).as_posix()
        for name in TREE
        for path in [tree / name, *(tree / name).rglob("*")]
        if path.is_file() and not path.parent.is_symlink()
    }
    assert {"LICENSE", "tests/public_api.txt", "tests/kernels/shim.h", ".ci/run", "kernels/spin.cu"} <= there
    assert there - held == set()
    assert not [name for name in held if "__pycache__" in name or name.endswith(".pyc")]


KERNELS = sorted(path.stem for path in (ROOT / "kernels").glob("*.cu"))


def test_the_installed_package_runs_away_from_the_checkout_and_importing_it_starts_nothing(installed):
    shown = run_installed(
        installed,
        """
        import importlib.util, sys
        import gpuloader, gpuloader.kernels.spin
        heavy = ["cupy", "multiprocessing.managers", "multiprocessing.pool",
                 "multiprocessing.queues", "multiprocessing.resource_tracker", "concurrent.futures.process"]
        print([name for name in heavy if name in sys.modules])
        from gpuloader.kernels.compiler import kernel_names, read_source
        assert gpuloader.kernels.spin.spin
        assert all("__global__" in read_source(name) for name in kernel_names())
        print(gpuloader.__file__, gpuloader.kernels.__file__, kernel_names())
        print(importlib.util.find_spec("kernels"))
        """,
    )
    package = installed / "gpuloader"
    files = f"{package / '__init__.py'} {package / 'kernels' / '__init__.py'}"
    assert shown.splitlines() == ["[]", f"{files} {KERNELS}", "None"]


def test_an_editable_install_finds_the_kernels_where_they_are_edited():
    code = "import gpuloader.kernels.spin as spin; print(spin.__file__)"
    shown = run(sys.executable, "-c", code, cwd=ROOT.parent)
    assert Path(shown.strip()).resolve() == ROOT / "kernels" / "spin.py"


FAKE_DRIVER = "int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("version", "demo", "dev"),
    [
        (0, "demo", "dev,demo,kernels"),  # hides a real driver
        (11080, "demo", "dev,demo,kernels"),
        (12040, "demo,cuda12", "dev,demo,cuda12,nvimgcodec-cu12"),
        (13030, "demo,cuda13", "dev,demo,cuda13,nvimgcodec-cu13"),
    ],
)
def test_make_installs_the_extras_that_the_driver_needs(tmp_path, version, demo, dev):
    (tmp_path / "driver.c").write_text(FAKE_DRIVER.format(version=version))
    run("cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c", cwd=tmp_path)
    command = ["make", "-n", "-W", "pyproject.toml", f"PYTHON={sys.executable}", "demo", "test"]
    shown = run(*command, cwd=ROOT, LD_LIBRARY_PATH=str(tmp_path))
    installs = [line.split("'")[1] for line in shown.splitlines() if "pip install" in line]
    assert installs == [f".[{demo}]", f".[{dev}]"]
    command = ["make", "-n", f"PYTHON={sys.executable}", "gpu-proof"]
    shown = run(*command, cwd=ROOT, LD_LIBRARY_PATH=str(tmp_path))
    assert f"'.[{dev}]'" in shown
    assert ("pip-version-check torch" in shown) == ("cuda" in dev)  # gigabytes, for nothing without a GPU
