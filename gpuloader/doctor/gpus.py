"""Findings about GPUs: driver, CuPy, devices, page-locking, and copy bandwidth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place
from gpuloader.doctor.attempt import Attempt, Outcome
from gpuloader.doctor.finding import Finding, Verdict, show_bytes
from gpuloader.doctor.nodes import Nodes, node_findings, read_gpu_nodes
from gpuloader.errors import install_command
from gpuloader.system.cores import read_text

TRIAL_SECONDS = 60.0
SLOW = 3e9
"""Bytes per second from page-locked memory; even the oldest link with sixteen lanes is faster."""

_FIRST_OF_CUDA_13 = 580
"""The first driver that supports CUDA 13; older ones support CUDA 12."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The machine's GPU driver, CuPy and devices.

    Attributes
    ----------
    driver : str
        Version of the NVIDIA kernel module; empty if none is loaded.
    cupy : dict
        Versions of the installed CuPy distributions, by name.
    seen : Outcome
        CuPy's view of the machine, a `gpuloader.devices.cuda.CudaMachine` as plain data; empty if CuPy is
        not installed.
    nodes : Nodes
        The NUMA nodes on which the devices are.
    """

    driver: str
    cupy: Mapping[str, str]
    seen: Outcome
    nodes: Nodes

    @property
    def devices(self) -> list[list[Any]]:
        """Name, memory in bytes and compute capability of each device that CuPy can use."""
        found: list[list[Any]] = self.seen.answer.get("devices", [])
        return found

    @property
    def extra(self) -> str:
        """The extra that installs the right CuPy for this driver."""
        known = self.seen.answer.get("driver", 0) // 1000
        if not known and self.driver:
            known = 13 if int(self.driver.split(".")[0]) >= _FIRST_OF_CUDA_13 else 12
        return "cuda12" if known == 12 else "cuda13"

    @property
    def install(self) -> str:
        """The command that installs the right CuPy."""
        return install_command(self.extra)


def read_gpus(installed: Mapping[str, str], attempt: Attempt, root: Path = Path("/")) -> Gpus:
    """Read the driver's version below `root`, and ask CuPy about devices if it is `installed`."""
    said = read_text(root / "proc/driver/nvidia/version") or ""
    driver = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", said)
    cupy = {
        name: version
        for name, version in installed.items()
        if re.fullmatch(r"cupy(-cuda\d+x|-rocm.*)?", name)
    }
    seen = attempt("gpus", seconds=TRIAL_SECONDS) if cupy else Outcome()
    nodes = read_gpu_nodes(seen.answer.get("buses", ()), root)
    return Gpus(driver[1] if driver else "", cupy, seen, nodes)


def choose_place(gpus: Gpus, place: Place | None) -> str:
    """Return the place to time copies to: the requested one, else the first GPU, else ''."""
    if isinstance(place, CPUPlace) or not gpus.devices:
        return ""
    return f"gpu:{place.index if isinstance(place, CUDAPlace) else 0}"


def gpu_findings(gpus: Gpus, place: Place | None, attempt: Attempt) -> tuple[tuple[Finding, ...], bool]:
    """Return the findings, and whether the driver refused to page-lock memory.

    A missing GPU is bad only if the user requested one. A GPU that CuPy cannot use is bad unless the user
    requested the CPU.
    """
    wanted = isinstance(place, CUDAPlace | CUDAPinnedPlace)
    spoilt: Verdict = "note" if isinstance(place, CPUPlace) else "bad"
    findings = [driver_finding(gpus, wanted), cupy_finding(gpus, wanted, spoilt), *device_findings(gpus)]
    if gpus.devices:
        findings += [compiler_finding(gpus), *node_findings(gpus.nodes)]
    if isinstance(place, CUDAPlace) and gpus.devices and place.index >= len(gpus.devices):
        advice = f"Choose from gpu:0 to gpu:{len(gpus.devices) - 1}, or check CUDA_VISIBLE_DEVICES."
        value = f"not among the {len(gpus.devices)} visible GPUs"
        findings.append(Finding(f"gpu:{place.index}", value, "bad", advice))
        return tuple(findings), False
    name = choose_place(gpus, place)
    if not name:
        return tuple(findings), False
    copies = attempt("copies", name, seconds=TRIAL_SECONDS)
    findings += copy_findings(name, copies, spoilt)
    return tuple(findings), bool(copies.answer.get("refusal"))


def driver_finding(gpus: Gpus, wanted: bool) -> Finding:
    """Report the driver's version and the newest CUDA that it supports."""
    known = gpus.seen.answer.get("driver", 0)
    cuda = f"CUDA {show_cuda(known)}" if known else ""
    if gpus.driver or cuda:
        return Finding("driver", ", ".join(filter(None, (gpus.driver, cuda))))
    if wanted:
        advice = "Install the NVIDIA driver, or give the container its GPUs, e.g. docker run --gpus all."
        return Finding("driver", "none found", "bad", advice)
    advice = "Batches stay on the CPU, which is fine without a GPU."
    return Finding("driver", "none found", "note", advice)


def cupy_finding(gpus: Gpus, wanted: bool, spoilt: Verdict) -> Finding:
    """Report whether CuPy is installed, built for a CUDA that the driver supports, and finds devices."""
    has_driver = bool(gpus.driver or gpus.seen.answer.get("driver"))
    if not gpus.cupy:
        advice = f"To use a GPU: {gpus.install}."
        missing: Verdict = "bad" if wanted else "note" if has_driver else "good"
        return Finding("CuPy", "not installed", missing, advice if missing != "good" else "")
    value = ", ".join(f"{name} {version}" for name, version in gpus.cupy.items())
    if len(gpus.cupy) > 1:
        advice = f"These overwrite each other: uninstall all of them, then {gpus.install}."
        return Finding("CuPy", value, spoilt if has_driver else "note", advice)
    if gpus.seen.problem or gpus.seen.answer.get("cupy") is None:
        reason = gpus.seen.problem or gpus.seen.answer.get("failure", "")
        advice = f"CuPy does not start: {reason}. Reinstall it: {gpus.install}."
        return Finding("CuPy", value, spoilt if has_driver or wanted else "note", advice)
    return _fit_finding(gpus, value, spoilt)


def _fit_finding(gpus: Gpus, value: str, spoilt: Verdict) -> Finding:
    answer = gpus.seen.answer
    built, known = answer["runtime"], answer["driver"]
    if built:
        value = f"{value}, built for CUDA {show_cuda(built)}"
    if known and built // 1000 > known // 1000:
        advice = (
            f"The driver supports only CUDA {show_cuda(known)}: pip uninstall {next(iter(gpus.cupy))}, "
            f"then {gpus.install}, or update the driver."
        )
        return Finding("CuPy", value, spoilt, advice)
    if not gpus.devices:
        if not (gpus.driver or known):  # the missing driver is its own finding
            return Finding("CuPy", value)
        advice = f"CuPy finds no device: {answer['failure']}. Check CUDA_VISIBLE_DEVICES and nvidia-smi."
        return Finding("CuPy", value, spoilt, advice)
    return Finding("CuPy", value)


def device_findings(gpus: Gpus) -> list[Finding]:
    """Report each device."""
    return [
        Finding(f"gpu:{index}", f"{name}, {show_bytes(nbytes)}, compute capability {capability}")
        for index, (name, nbytes, capability) in enumerate(gpus.devices)
    ]


def compiler_finding(gpus: Gpus) -> Finding:
    """Report whether NVRTC is there to compile kernels at their first launch."""
    if gpus.seen.answer["nvrtc"]:
        return Finding("NVRTC", "found; compiles each kernel at its first launch")
    advice = f"Transforms and cache='device' fail on a GPU without it: {gpus.install}."
    return Finding("NVRTC", "not found", "note", advice)


def copy_findings(name: str, copies: Outcome, spoilt: Verdict) -> list[Finding]:
    """Report whether memory can be page-locked, and the bandwidth with and without page-locking."""
    if copies.problem:
        advice = f"A loader to {name} would fail too. Check nvidia-smi for other users of the device."
        return [Finding(f"copies to {name}", copies.problem, spoilt, advice)]
    answer = copies.answer
    pageable = Finding("pageable copy", f"{answer['pageable'] / 1e9:.1f} GB/s to {name}")
    if answer["refusal"]:
        advice = (
            "Loaders copy from pageable memory instead, which is slower and overlaps less. See memlock limit."
        )
        return [Finding("page-locking", f"refused: {answer['refusal']}", "note", advice), pageable]
    pinned = f"{answer['pinned'] / 1e9:.1f} GB/s to {name}"
    advice = "That is slow for page-locked memory. Check the PCIe link width with nvidia-smi -q -d PCIE."
    return [
        Finding("page-locking", f"works, took {answer['seconds'] * 1e3:.0f} ms"),
        Finding("page-locked copy", pinned, "note", advice)
        if answer["pinned"] < SLOW
        else Finding("page-locked copy", pinned),
        pageable,
    ]


def show_cuda(number: int) -> str:
    """Format a CUDA version number for people.

    >>> show_cuda(13020)
    '13.2'
    """
    return f"{number // 1000}.{number % 1000 // 10}"
