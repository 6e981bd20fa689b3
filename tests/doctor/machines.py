"""Fake machines: the files of their kernels, their facts, and the answers of trials on them."""

from gpuloader.doctor.facts import Machine
from gpuloader.doctor.trials import Outcome

NO_DEVICES = "CUDARuntimeError: cudaErrorNoDevice: no CUDA-capable device is detected"
GPU = ["NVIDIA H100", 80 << 30, "9.0"]
COPIES = {"pageable": 9e9, "pinned": 50e9, "seconds": 0.02, "refusal": ""}
GIB, MIB = 1 << 30, 1 << 20

LINUX = Machine(
    distributions={"numpy": "2.4.6"},
    python="3.12.1",
    system="Linux",
    architecture="x86_64",
    numpy="2.4.6",
    kernels=("crop",),
    processors=16,
    allowed=16,
    start_methods=("fork", "spawn", "forkserver"),
    file_limit=1024,
    files_open=10,
    memory=(64 * GIB, 32 * GIB),
    shared=(32 * GIB, 32 * GIB),
)


def cuda(
    *, runtime=13020, driver=13000, devices=(GPU,), failure="", nvrtc=True, cupy="14.2.0", buses=(), cure=""
):
    """Return CuPy's description of a machine with CUDA."""
    found = {"cupy": cupy, "runtime": runtime, "driver": driver, "devices": list(devices)}
    return {**found, "failure": failure, "nvrtc": nvrtc, "buses": list(buses), "cure": cure}


class Trials:
    """Canned answers of trials, where a string is the problem of a failed one; records what was tried."""

    def __init__(self, **answers):
        self.answers = {"worker": {"seconds": 0.5}, "copies": COPIES, **answers}
        self.tried = []

    def __call__(self, trial, *arguments, seconds):
        assert 0 < seconds <= 60
        self.tried.append((trial, *arguments))
        answer = self.answers[trial]
        return Outcome(problem=answer) if isinstance(answer, str) else Outcome(answer)


def write_driver(root, version="580.65.06"):
    """Write the version file of a loaded driver below a root."""
    folder = root / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (builder)\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    return root


def verdicts(findings):
    """Return the verdict of each finding by name."""
    return {one.name: one.verdict for one in findings}


def named(findings, name):
    """Return the finding with this name."""
    (found,) = (one for one in findings if one.name == name)
    return found
