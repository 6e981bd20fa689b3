"""Findings about GPUs: driver, CuPy, devices, page-locking, and how fast memory reaches them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuloader.base.control_group import read_text
from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place
from gpuloader.doctor.attempt import Attempt, Outcome
from gpuloader.doctor.finding import Finding, Verdict, show_bytes

TRIAL_SECONDS = 60.0
SLOW = 3e9
"""Bytes a second from page-locked memory; the oldest link with sixteen lanes gives more."""

_FIRST_OF_CUDA_13 = 580
"""The first driver that runs CUDA 13; an older one runs CUDA 12."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """What the machine has.

    Attributes
    ----------
    driver : str
        Version of NVIDIA's kernel module; empty where none is loaded.
    cupy : dict
        Installed distributions of CuPy, and their versions.
    seen : Outcome
        What CuPy said when it was asked: `gpuloader.devices.cuda.CudaMachine` as plain data. Empty where it
        is not installed.
    """

    driver: str
    cupy: Mapping[str, str]
    seen: Outcome

    @property
    def devices(self) -> list[list[Any]]:
        """Name, bytes and compute capability of each device that CuPy can use."""
        found: list[list[Any]] = self.seen.answer.get("devices", [])
        return found

    @property
    def extra(self) -> str:
        """The extra that installs the CuPy for this driver."""
        known = self.seen.answer.get("driver", 0) // 1000
        if not known and self.driver:
            known = 13 if int(self.driver.split(".")[0]) >= _FIRST_OF_CUDA_13 else 12
        return "gpuloader[cuda12]" if known == 12 else "gpuloader[cuda13]"


def read_gpus(installed: Mapping[str, str], attempt: Attempt, root: Path = Path("/")) -> Gpus:
    """Return what there is: the driver's word below `root`, and CuPy's if it is among what is `installed`."""
    said = read_text(root / "proc/driver/nvidia/version") or ""
    driver = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", said)
    cupy = {
        name: version
        for name, version in installed.items()
        if re.fullmatch(r"cupy(-cuda\d+x|-rocm.*)?", name)
    }
    seen = attempt("gpus", seconds=TRIAL_SECONDS) if cupy else Outcome()
    return Gpus(driver[1] if driver else "", cupy, seen)


def choose_place(gpus: Gpus, place: Place | None) -> str:
    """Return the place whose copies are timed, '' for none: the one asked for, else the first GPU."""
    if isinstance(place, CPUPlace) or not gpus.devices:
        return ""
    return f"gpu:{place.index if isinstance(place, CUDAPlace) else 0}"


def gpu_findings(gpus: Gpus, place: Place | None, attempt: Attempt) -> tuple[tuple[Finding, ...], bool]:
    """Return the findings, and whether the driver refused to page-lock memory.

    What is missing makes a loader fail only if a GPU was asked for; that a GPU is there and CuPy cannot use
    it is a failure unless the CPU was asked for.
    """
    wanted = isinstance(place, CUDAPlace | CUDAPinnedPlace)
    spoilt: Verdict = "note" if isinstance(place, CPUPlace) else "bad"
    findings = [driver_finding(gpus, wanted), cupy_finding(gpus, wanted, spoilt), *device_findings(gpus)]
    if gpus.devices:
        findings.append(compiler_finding(gpus))
    if isinstance(place, CUDAPlace) and gpus.devices and place.index >= len(gpus.devices):
        advice = f"Choose one of gpu:0 to gpu:{len(gpus.devices) - 1}, or look at CUDA_VISIBLE_DEVICES."
        findings.append(
            Finding(f"gpu:{place.index}", f"not among the {len(gpus.devices)} visible", "bad", advice)
        )
        return tuple(findings), False
    name = choose_place(gpus, place)
    if not name:
        return tuple(findings), False
    copies = attempt("copies", name, seconds=TRIAL_SECONDS)
    findings += copy_findings(name, copies, spoilt)
    return tuple(findings), bool(copies.answer.get("refusal"))


def driver_finding(gpus: Gpus, wanted: bool) -> Finding:
    """Return which driver there is, and the newest CUDA that it knows."""
    known = gpus.seen.answer.get("driver", 0)
    cuda = f"CUDA {show_cuda(known)}" if known else ""
    if gpus.driver or cuda:
        return Finding("driver", ", ".join(filter(None, (gpus.driver, cuda))))
    if wanted:
        advice = "Install NVIDIA's driver, or give the container its GPUs, e.g. docker run --gpus all."
        return Finding("driver", "none found", "bad", advice)
    return Finding(
        "driver", "none found", "note", "Batches land on the CPU, which is all right without a GPU."
    )


def cupy_finding(gpus: Gpus, wanted: bool, spoilt: Verdict) -> Finding:
    """Return whether CuPy is there, for a CUDA that the driver runs, and finds devices."""
    has_driver = bool(gpus.driver or gpus.seen.answer.get("driver"))
    if not gpus.cupy:
        advice = f"To use a GPU: pip install '{gpus.extra}'."
        missing: Verdict = "bad" if wanted else "note" if has_driver else "good"
        return Finding("CuPy", "not installed", missing, advice if missing != "good" else "")
    value = ", ".join(f"{name} {version}" for name, version in gpus.cupy.items())
    if len(gpus.cupy) > 1:
        advice = f"They overwrite each other: uninstall all of them, then pip install '{gpus.extra}'."
        return Finding("CuPy", value, spoilt if has_driver else "note", advice)
    if gpus.seen.problem or gpus.seen.answer.get("cupy") is None:
        reason = gpus.seen.problem or gpus.seen.answer.get("failure", "")
        advice = f"CuPy does not start: {reason}; install it again: pip install '{gpus.extra}'."
        return Finding("CuPy", value, spoilt if has_driver or wanted else "note", advice)
    return _fit_finding(gpus, value, spoilt)


def _fit_finding(gpus: Gpus, value: str, spoilt: Verdict) -> Finding:
    answer = gpus.seen.answer
    built, known = answer["runtime"], answer["driver"]
    if built:
        value = f"{value}, built for CUDA {show_cuda(built)}"
    if known and built // 1000 > known // 1000:
        advice = (
            f"The driver knows CUDA {show_cuda(known)} and cannot run it: pip uninstall "
            f"{next(iter(gpus.cupy))}, then pip install '{gpus.extra}', or update the driver."
        )
        return Finding("CuPy", value, spoilt, advice)
    if not gpus.devices:
        if not (gpus.driver or known):  # then the driver is what is missing
            return Finding("CuPy", value)
        advice = f"It finds no device: {answer['failure']}; look at CUDA_VISIBLE_DEVICES and nvidia-smi."
        return Finding("CuPy", value, spoilt, advice)
    return Finding("CuPy", value)


def device_findings(gpus: Gpus) -> list[Finding]:
    """Return a finding for each device."""
    return [
        Finding(f"gpu:{index}", f"{name}, {show_bytes(nbytes)}, compute capability {capability}")
        for index, (name, nbytes, capability) in enumerate(gpus.devices)
    ]


def compiler_finding(gpus: Gpus) -> Finding:
    """Return whether kernels can be compiled when they are first launched."""
    if gpus.seen.answer["nvrtc"]:
        return Finding("NVRTC", "found, compiles kernels when they are first launched")
    advice = f"Transforms and device caches on a GPU fail without it: pip install '{gpus.extra}'."
    return Finding("NVRTC", "not found", "note", advice)


def copy_findings(name: str, copies: Outcome, spoilt: Verdict) -> list[Finding]:
    """Return whether memory can be page-locked, and how fast it reaches the device either way."""
    if copies.problem:
        advice = f"A loader to {name} fails as well: look at nvidia-smi for who uses the device."
        return [Finding(f"copies to {name}", copies.problem, spoilt, advice)]
    answer = copies.answer
    pageable = Finding("pageable copy", f"{answer['pageable'] / 1e9:.1f} GB/s to {name}")
    if answer["refusal"]:
        advice = (
            "Copies go on from pageable memory, which is slower and overlaps less; see the memlock limit."
        )
        return [Finding("page-locking", f"refused: {answer['refusal']}", "note", advice), pageable]
    pinned = f"{answer['pinned'] / 1e9:.1f} GB/s to {name}"
    advice = "That is slow for page-locked memory: look at the link's width with nvidia-smi -q -d PCIE."
    return [
        Finding("page-locking", f"works, tried in {answer['seconds'] * 1e3:.0f} ms"),
        Finding("page-locked copy", pinned, "note", advice)
        if answer["pinned"] < SLOW
        else Finding("page-locked copy", pinned),
        pageable,
    ]


def show_cuda(number: int) -> str:
    """Return a CUDA version as people write it.

    >>> show_cuda(13020)
    '13.2'
    """
    return f"{number // 1000}.{number % 1000 // 10}"
