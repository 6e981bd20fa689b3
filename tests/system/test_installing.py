"""Tests of the commands that errors and ``doctor`` advise: each works from where the package came from."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpuloader import errors as installing
from gpuloader.errors import MissingPackage, describe_source, import_package, install_command

ROOT = Path(__file__).parents[2]
in_checkout = pytest.mark.skipif(
    Path(installing.__file__).parents[1] != ROOT, reason="the package is not that of the checkout"
)
SITE = Path("/usr/lib/python3/site-packages")


@in_checkout
def test_in_the_checkout_it_is_a_dot_and_outside_its_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert install_command("cli") == f"pip install '{ROOT}[cli]'"
    monkeypatch.chdir(ROOT)
    assert install_command("cli") == "pip install '.[cli]'"
    assert install_command(force=True) == "pip install --force-reinstall '.'"
    with pytest.raises(MissingPackage, match=r"the plot needs plots, .*: pip install '\.\[bench\]'"):
        import_package("no_such_module", "the plot", "bench", "plots")


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({}, "gpuloader[cli]"),
        ({"url": 3}, "gpuloader[cli]"),
        ({"url": "file:///my%20checkout", "dir_info": {}}, "gpuloader[cli] @ file:///my%20checkout"),
        (
            {"url": "https://host/gpuloader.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "gpuloader[cli] @ git+https://host/gpuloader.git@0a1b",
        ),
        (
            {"url": "https://host/gpuloader-1.0.tar.gz", "archive_info": {}},
            "gpuloader[cli] @ https://host/gpuloader-1.0.tar.gz",
        ),
    ],
)
def test_other_installations(origin, requirement):
    assert describe_source(SITE, origin, ROOT, "cli") == requirement


@pytest.mark.parametrize("noted", [None, "", "{", "[]"])
def test_what_cannot_be_read_counts_as_an_index(noted, monkeypatch):
    class Found:
        def read_text(self, name):
            assert name == "direct_url.json"
            return noted

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Found())
    assert installing.read_origin.__wrapped__() == {}


def test_pip_understands_the_command(tmp_path):
    pytest.importorskip("setuptools")
    options = ["--dry-run", "--no-deps", "--no-build-isolation", "--quiet"]
    requirement = describe_source(ROOT, {}, tmp_path, "cli")
    command = [sys.executable, "-m", "pip", "install", *options, requirement]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
