"""Findings about Python, NumPy, optional packages and kernels, each with its verdict."""

import pytest

from gpuloader.doctor import software
from gpuloader.doctor.software import (
    installed_distributions,
    kernels_finding,
    numpy_finding,
    pictures_finding,
    python_finding,
    software_findings,
)
from tests.doctor.machines import named, verdicts


@pytest.mark.parametrize(
    ("version", "system", "verdict"),
    [((3, 10, 4), "Linux", "bad"), ((3, 11, 0), "Linux", "good"), ((3, 13, 1), "Windows", "note")],
)
def test_python(version, system, verdict):
    assert python_finding(version, system, "x86_64").verdict == verdict


@pytest.mark.parametrize(
    ("version", "verdict"), [("1.25.2", "bad"), ("1.26.0", "good"), ("2.5.0rc1", "good")]
)
def test_numpy(version, verdict):
    assert numpy_finding(version).verdict == verdict


def test_packages_that_are_made_use_of_are_noted_when_missing():
    findings = software_findings({"gpuloader": "0.1.0", "threadpoolctl": "3.8.0"})
    assert verdicts(findings)["cloudpickle"] == "note"
    assert "[workers]" in named(findings, "cloudpickle").advice
    assert verdicts(findings)["threadpoolctl"] == "good"
    assert named(findings, "gpuloader").value == "0.1.0"


def test_frameworks_are_named_and_none_is_all_right():
    none = named(software_findings({}), "frameworks")
    assert none.verdict == "good"
    some = named(software_findings({"torch": "2.13.0", "paddlepaddle-gpu": "3.3.1"}), "frameworks")
    assert some.value == "torch 2.13.0, paddle 3.3.1"


def test_pictures_need_no_package_but_take_longer_without_some():
    all_of_them = {"pillow": "12.0", "simplejpeg": "1.9", "numba": "0.61"}
    found = pictures_finding(all_of_them, has_turbojpeg=False)
    assert (found.value, found.verdict) == ("pillow 12.0, simplejpeg 1.9, numba 0.61", "good")
    assert pictures_finding({}, has_turbojpeg=False).value == "none of pillow, simplejpeg, numba"
    assert pictures_finding({"numba": "0.61"}, has_turbojpeg=True).verdict == "good"
    found = pictures_finding({"pillow": "12.0"}, has_turbojpeg=False)
    assert (found.value, found.verdict) == ("pillow 12.0", "note")
    assert "Without simplejpeg and numba" in found.advice
    assert "images-fast" in found.advice


def test_a_package_without_kernels_is_incomplete(monkeypatch):
    assert "normalize" in kernels_finding().value
    monkeypatch.setattr(software, "kernel_names", list)
    assert kernels_finding().verdict == "bad"


def test_distributions_are_known_by_their_names_in_lower_case(tmp_path, monkeypatch):
    folder = tmp_path / "Some_Name-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: Some_Name\nVersion: 1.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_distributions()["some_name"] == "1.5"
