"""Findings about Python, NumPy, optional packages and the kernels."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Mapping

import numpy as np

from gpuloader.doctor.finding import Finding
from gpuloader.errors import install_command
from gpuloader.kernels.compiling import kernel_names, read_source
from gpuloader.sources.images.turbojpeg import load_turbojpeg

OLDEST_PYTHON = (3, 11)
OLDEST_NUMPY = (1, 26)

USED = {
    "cloudpickle": (
        "workers",
        "Without it, datasets that are defined in a notebook or hold closures are forked, not pickled.",
    ),
    "threadpoolctl": (
        "workers",
        "Without it, linear algebra in every worker process may start one thread per core.",
    ),
}
"""Optional packages of the loader: the extra that installs each, and the consequence of its absence."""

PICTURES = ("pillow", "simplejpeg", "numba")
"""The distributions that decode and resize pictures."""

FRAMEWORKS = {"torch": "torch", "jax": "jax", "paddle": "paddlepaddle"}
"""The distribution that each `output` needs; Paddle's GPU build has the suffix ``-gpu``."""


def installed_distributions() -> dict[str, str]:
    """Return the version of every installed distribution by its lower-case name, without importing any.

    >>> "numpy" in installed_distributions()
    True
    """
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name:
            found.setdefault(name.lower(), one.version)  # Python imports the first on the path
    return found


def software_findings(installed: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return the findings, given the version of every installed distribution."""
    return (
        Finding("gpuloader", installed.get("gpuloader", "not installed, running from its folder")),
        python_finding(sys.version_info[:3], platform.system(), platform.machine()),
        numpy_finding(np.__version__),
        kernels_finding(),
        *(_used_finding(name, installed) for name in USED),
        pictures_finding(installed, has_turbojpeg=load_turbojpeg() is not None),
        _frameworks_finding(installed),
    )


def python_finding(version: tuple[int, ...], system: str, machine: str) -> Finding:
    """Report whether the interpreter is new enough and its system supports worker processes.

    >>> python_finding((3, 12, 1), "Linux", "x86_64").value
    '3.12.1 on Linux x86_64'
    """
    value = f"{'.'.join(map(str, version))} on {system} {machine}"
    if version[:2] < OLDEST_PYTHON:
        return Finding("Python", value, "bad", "Use Python 3.11 or later.")
    if system == "Windows":
        advice = "Worker processes need memory files and Unix sockets. Use worker_type='thread'."
        return Finding("Python", value, "note", advice)
    return Finding("Python", value)


def numpy_finding(version: str) -> Finding:
    """Report whether NumPy is new enough.

    >>> numpy_finding("1.24.0").verdict, numpy_finding("2.4.6").verdict
    ('bad', 'good')
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST_NUMPY:
        advice = "Install NumPy 1.26 or later: pip install 'numpy>=1.26'."
        return Finding("NumPy", version, "bad", advice)
    return Finding("NumPy", version)


def kernels_finding() -> Finding:
    """Report whether the package contains the kernels' sources."""
    try:
        names = [name for name in kernel_names() if read_source(name)]
    except OSError:
        names = []
    if not names:
        advice = f"The package is incomplete. Reinstall it: {install_command(force=True)}."
        return Finding("kernels", "none found", "bad", advice)
    return Finding("kernels", ", ".join(names))


def _used_finding(name: str, installed: Mapping[str, str]) -> Finding:
    extra, without = USED[name]
    if name in installed:
        return Finding(name, installed[name])
    return Finding(name, "not installed", "note", f"{without} Install it: {install_command(extra)}.")


def pictures_finding(installed: Mapping[str, str], *, has_turbojpeg: bool) -> Finding:
    """Report what decodes and resizes pictures; having none of it is good too.

    >>> pictures_finding({"pillow": "12.0", "simplejpeg": "1.9", "numba": "0.61"}, has_turbojpeg=True).value
    'pillow 12.0, simplejpeg 1.9, numba 0.61, TurboJPEG 3'
    """
    present = [f"{name} {installed[name]}" for name in PICTURES if name in installed]
    value = ", ".join(present + ["TurboJPEG 3"] * has_turbojpeg)
    if "pillow" not in installed:
        return Finding("pictures", value or f"none of {', '.join(PICTURES)}")
    missing = [name for name in PICTURES if name not in installed]
    if missing:
        install = install_command("images-fast")
        advice = f"Without {' and '.join(missing)}, pictures take longer. Install: {install}."
        return Finding("pictures", value, "note", advice)
    return Finding("pictures", value)


def _frameworks_finding(installed: Mapping[str, str]) -> Finding:
    """Report the frameworks whose tensors batches can become; having none is good too."""
    known = {
        name: installed.get(distribution) or installed.get(f"{distribution}-gpu")
        for name, distribution in FRAMEWORKS.items()
    }
    present = [f"{name} {version}" for name, version in known.items() if version]
    return Finding("frameworks", ", ".join(present) or "none of torch, jax, paddle")
