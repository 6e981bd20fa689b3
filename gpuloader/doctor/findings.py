"""The doctor's report: each finding has a verdict and, unless it is good, advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place
from gpuloader.doctor.facts import Machine, read_machine
from gpuloader.doctor.trials import TRIAL_SECONDS, Attempt, Outcome, attempt, best_bandwidth
from gpuloader.errors import StagingMemoryError, install_command
from gpuloader.staging import Arena
from gpuloader.system.cores import show_cores
from gpuloader.system.driver import show_cuda
from gpuloader.system.platforms import has_memory_files

# "bad": a loader would fail here. "note": it works, but not as well as it could or not as expected.
Verdict = Literal["good", "note", "bad"]

MIB, GIB = 1 << 20, 1 << 30

LITTLE_MEMORY, TOO_LITTLE = GIB, 64 * MIB
# Free descriptors: a loader with workers opens about ten, and a few more for each worker process.
FEW_FILES, TOO_FEW = 256, 32
# Free bytes in /dev/shm; Docker's default size is 64 MiB.
SMALL_SHARED = GIB
# Bytes per second: even the oldest PCIe link with sixteen lanes copies faster from pinned memory.
SLOW_PINNED, SLOW_HOST = 3e9, 2e9
# Bytes of the timed copy: more than all but the largest processor caches hold.
COPIED = 32 << 20
# What decodes and resizes images, and the distribution that each `output` needs.
DECODERS = ("pillow", "simplejpeg", "numba")
FRAMEWORKS = {"torch": "torch", "jax": "jax", "paddle": "paddlepaddle"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing: its name, its observed state, the consequence for a loader, and what to do."""

    name: str
    value: str
    verdict: Verdict
    advice: str


def find(name: str, value: str, advice: str | bool = "", verdict: Verdict = "note") -> Finding:
    """Return a finding: good if there is no advice, such as False; otherwise with this verdict."""
    return Finding(name, value, verdict if advice else "good", str(advice or ""))


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about a machine, by section in display order.

    >>> report = Report({"Memory": (find("/dev/shm", "missing", "Mount it."),)})
    >>> report.works, report.count("note"), report.to_json()[0]["section"]
    (True, 1, 'Memory')
    """

    sections: dict[str, tuple[Finding, ...]]

    @property
    def works(self) -> bool:
        """Whether a loader would work: no finding is bad."""
        return not self.count("bad")

    def count(self, verdict: Verdict) -> int:
        """Return the number of findings with this verdict."""
        return sum(one.verdict == verdict for findings in self.sections.values() for one in findings)

    def to_json(self) -> list[dict[str, str]]:
        """Return the findings as plain data, each with its section's title."""
        return [
            {"section": title, **asdict(one)} for title, findings in self.sections.items() for one in findings
        ]


def examine(
    place: Place | None = None,
    *,
    root: Path = Path("/"),
    attempt: Attempt = attempt,
    tell: Callable[[str], object] = lambda _: None,
) -> Report:
    """Inspect the machine and try what a loader does on it; this takes some seconds.

    If `place` is a GPU, an unusable GPU is bad; with None, only if the machine has one. `root` contains
    ``proc``, ``sys`` and ``dev``; `attempt` runs a trial; `tell` is called with what is checked next.
    """
    tell("the machine")
    machine = read_machine(root, attempt)
    software = tuple(software_findings(machine))
    tell("the GPUs")
    # Before the memory: whether the lock limit matters depends on whether the driver refused to pin.
    gpus, copies = gpu_findings(machine, place, attempt)
    tell("worker processes")
    processors = tuple(processor_findings(machine, attempt))
    tell("the memory")
    memory = tuple(memory_findings(machine, pinning_refused=bool(copies.answer.get("refusal"))))
    return Report({"Software": software, "GPU": gpus, "Processors": processors, "Memory": memory})


def software_findings(machine: Machine) -> Iterator[Finding]:
    """Yield the findings about Python, NumPy, the kernels and optional packages."""
    installed = machine.distributions
    yield find("gpuloader", installed.get("gpuloader", "not installed, running from its folder"))

    value = f"{machine.python} on {machine.system} {machine.architecture}"
    advice = "Worker processes need memory files and Unix sockets. Use worker_type='thread'."
    yield find("Python", value, machine.system == "Windows" and advice)

    # Only the first two numbers: in a release candidate, the third is not a number.
    old = tuple(int(part) for part in machine.numpy.split(".")[:2] if part.isdecimal()) < (1, 26)
    yield find("NumPy", machine.numpy, old and "Too old: pip install 'numpy>=1.26'.", "bad")

    # The sources are package data, which a careless repackaging loses first.
    advice = f"The package is incomplete. Reinstall it: {install_command(force=True)}."
    yield find("kernels", ", ".join(machine.kernels) or "none found", not machine.kernels and advice, "bad")

    for name, without in (
        ("cloudpickle", "datasets that are defined in a notebook or hold closures are forked, not pickled."),
        ("threadpoolctl", "linear algebra in every worker process may start one thread per core."),
    ):
        advice = f"Without it, {without} Install it: {install_command('workers')}."
        yield find(name, installed.get(name, "not installed"), name not in installed and advice)

    present = [f"{name} {installed[name]}" for name in DECODERS if name in installed]
    value = ", ".join(present + ["TurboJPEG 3"] * machine.turbojpeg) or f"none of {', '.join(DECODERS)}"
    missing = " and ".join(name for name in DECODERS if name not in installed)
    advice = f"Without {missing}, images take longer. Install: {install_command('images-fast')}."
    # Without Pillow nothing here decodes images, so the packages that make it faster are not missing.
    yield find("images", value, bool(missing) and "pillow" in installed and advice)

    # Paddle's build for GPUs is a separate distribution.
    present = [
        f"{name} {version}"
        for name, package in FRAMEWORKS.items()
        if (version := installed.get(package) or installed.get(f"{package}-gpu"))
    ]
    yield find("frameworks", ", ".join(present) or f"none of {', '.join(FRAMEWORKS)}")


def gpu_findings(
    machine: Machine, place: Place | None, attempt: Attempt
) -> tuple[tuple[Finding, ...], Outcome]:
    """Return the findings about the driver, CuPy and GPUs, and the outcome of the trial that times copies."""
    wanted = isinstance(place, CUDAPlace | CUDAPinnedPlace)
    # If the user asked for the CPU, a broken GPU does not matter.
    spoilt: Verdict = "note" if isinstance(place, CPUPlace) else "bad"
    devices, known = machine.devices, machine.cuda.answer.get("driver", 0)
    value = ", ".join(filter(None, (machine.driver, f"CUDA {show_cuda(known)}" if known else "")))
    advice = "Batches stay on the CPU, which is fine without a GPU."
    if wanted:
        advice = "Install the NVIDIA driver, or give the container its GPUs, e.g. docker run --gpus all."
    install = install_command("cuda12" if known // 1000 == 12 else "cuda13")
    findings = [
        find("driver", value or "none found", not value and advice, "bad" if wanted else "note"),
        _cupy_finding(machine, wanted, spoilt, install),
        *(
            find(f"gpu:{index}", f"{name}, {show_bytes(nbytes)}, compute capability {capability}")
            for index, (name, nbytes, capability) in enumerate(devices)
        ),
    ]
    if not devices:
        return tuple(findings), Outcome()

    if machine.cuda.answer["nvrtc"]:
        findings.append(find("NVRTC", "found; compiles each kernel at its first launch"))
    else:
        advice = f"Transforms and cache='device' fail on a GPU without it: {install}."
        findings.append(find("NVRTC", "not found", advice))
    findings += node_findings(machine)
    index = place.index if isinstance(place, CUDAPlace) else 0
    if index >= len(devices):  # CUDA numbers only the devices that it may see
        advice = f"Choose from gpu:0 to gpu:{len(devices) - 1}, or check CUDA_VISIBLE_DEVICES."
        findings.append(find(f"gpu:{index}", f"not among the {len(devices)} visible GPUs", advice, "bad"))
    if index >= len(devices) or isinstance(place, CPUPlace):
        return tuple(findings), Outcome()
    copies = attempt("copies", f"gpu:{index}", seconds=TRIAL_SECONDS)
    return (*findings, *_copy_findings(f"gpu:{index}", copies, spoilt)), copies


def _cupy_finding(machine: Machine, wanted: bool, spoilt: Verdict, install: str) -> Finding:
    """Say whether CuPy is installed, starts, is built for a CUDA that the driver knows, and finds devices."""
    seen = machine.cuda.answer
    known = seen.get("driver", 0)
    has_driver = bool(machine.driver or known)
    if not machine.cupy:
        # A machine without a GPU does not need CuPy.
        advice = f"To use a GPU: {install}." if wanted or has_driver else ""
        return find("CuPy", "not installed", advice, "bad" if wanted else "note")
    value = ", ".join(f"{name} {version}" for name, version in machine.cupy.items())
    if len(machine.cupy) > 1:
        advice = f"These overwrite each other: uninstall all of them, then {install}."
        return find("CuPy", value, advice, spoilt if has_driver else "note")
    if machine.cuda.problem or seen.get("cupy") is None:
        reason = machine.cuda.problem or seen.get("failure", "")
        advice = f"CuPy does not start: {reason}. To mend it: {seen.get('cure') or install}."
        return find("CuPy", value, advice, spoilt if has_driver or wanted else "note")
    built = seen["runtime"]
    if built:
        value = f"{value}, built for CUDA {show_cuda(built)}"
    # A driver runs everything built for its own major version or an older one, but nothing newer.
    if known and built // 1000 > known // 1000:
        advice = (
            f"The driver supports only CUDA {show_cuda(known)}: pip uninstall {next(iter(machine.cupy))}, "
            f"then {install}, or update the driver."
        )
        return find("CuPy", value, advice, spoilt)
    if not machine.devices and has_driver:  # a missing driver is a separate finding
        advice = f"CuPy finds no device: {seen['failure']}. Check CUDA_VISIBLE_DEVICES and nvidia-smi."
        return find("CuPy", value, advice, spoilt)
    return find("CuPy", value)


def node_findings(machine: Machine) -> Iterator[Finding]:
    """Yield where slots and workers for each GPU go, and if not to its NUMA node, why not.

    >>> cores = {0: frozenset({0, 1}), 1: frozenset({2, 3})}
    >>> near = Machine(nodes=cores, node_of_gpu=(1,), cores=frozenset({0, 1, 2, 3}))
    >>> [(finding.value, finding.verdict) for finding in node_findings(near)]
    [('gpu:0 is on node 1 of 2; slots and workers go to its cores 2-3', 'good')]
    """
    count = len(machine.nodes)
    if count == 1 and machine.node_of_gpu:
        yield find("NUMA", "one node; all memory is equally near")
    for index, node in enumerate(machine.node_of_gpu if count > 1 else ()):
        cores = machine.nodes.get(-1 if node is None else node, frozenset())
        where = f"gpu:{index} is on node {node} of {count}"
        if not cores:
            # Virtual machines often hide the node: the kernel then reports -1.
            advice = "The system places slots and workers. To choose a node: numactl --cpunodebind=NODE."
            yield find("NUMA", f"gpu:{index} is on no known node of the {count}", advice)
        elif near := cores & machine.cores:
            yield find("NUMA", f"{where}; slots and workers go to its cores {show_cores(near)}")
        else:
            advice = (
                f"Copies to gpu:{index} cross the link between processors, which is slower and shared. Start "
                f"the program on the node's cores, e.g. with taskset -c {show_cores(cores)}."
            )
            yield find("NUMA", f"{where}, and this process may not run there", advice)


def _copy_findings(name: str, copies: Outcome, spoilt: Verdict) -> Iterator[Finding]:
    """Say whether memory can be pinned, and how fast copies are with and without pinning."""
    if copies.problem:
        advice = f"A loader to {name} would fail too. Check nvidia-smi for other users of the device."
        yield find(f"copies to {name}", copies.problem, advice, spoilt)
        return
    answer = copies.answer
    if answer["refusal"]:
        advice = "Loaders copy from pageable memory, which is slower and overlaps less. See memlock limit."
        yield find("pinning", f"refused: {answer['refusal']}", advice)
    else:
        yield find("pinning", f"works, took {answer['seconds'] * 1e3:.0f} ms")
        advice = "That is slow for pinned memory. Check the PCIe link width with nvidia-smi -q -d PCIE."
        speed = f"{answer['pinned'] / 1e9:.1f} GB/s to {name}"
        yield find("pinned copy", speed, answer["pinned"] < SLOW_PINNED and advice)
    yield find("pageable copy", f"{answer['pageable'] / 1e9:.1f} GB/s to {name}")


def processor_findings(machine: Machine, attempt: Attempt) -> Iterator[Finding]:
    """Yield what limits workers: cores, threads, open files; and whether a worker process starts."""
    usable, limit = float(machine.allowed), "affinity"
    # os.cpu_count() ignores the affinity and a container's quota, so programs start too many workers.
    if machine.group.processors is not None and machine.group.processors < usable:
        usable, limit = machine.group.processors, "control group"
    value, advice = f"{usable:g} of {machine.processors} usable", ""
    if usable < machine.processors:
        # Fractions of a core round down: a worker that waits for the quota delays its batch.
        advice = (
            f"Keep num_workers at {max(int(usable), 1)} or below: more workers would only take turns. "
            f"os.cpu_count() returns {machine.processors} here."
        )
        value += f" ({limit})"
    yield find("cores", value, advice)

    threads = machine.threads
    # A list such as "4,2" is for nested parallel regions; only its first number matters here.
    wrong = threads and (not threads.replace(",", "").isdecimal() or int(threads.split(",")[0]) < 1)
    value = threads or "not set; each worker gets a fair share of the cores"
    advice = "Set OMP_NUM_THREADS to 1 thread or more, or unset it."
    yield find("OMP_NUM_THREADS", repr(threads) if wrong else value, bool(wrong) and advice)

    if machine.file_limit is None:
        yield find("open files", f"{machine.files_open}, no limit")
    else:
        value = f"{machine.files_open} of {machine.file_limit:,}"
        left = machine.file_limit - machine.files_open
        advice = "Raise the limit: ulimit -n 4096."
        yield find("open files", value, left < FEW_FILES and advice, "bad" if left < TOO_FEW else "note")

    methods = machine.start_methods
    if "forkserver" not in methods:
        advice = "This system has no fork server. Use worker_type='thread'."
        yield find("start method", f"only {', '.join(methods)}", advice)
        return
    yield find("start method", f"{methods[0]}, Python's default")
    worker = attempt("worker", seconds=TRIAL_SECONDS)
    if worker.problem:
        advice = "Perhaps a sandbox forbids memory files or sockets. Use worker_type='thread'."
        yield find("worker process", worker.problem, advice, "bad")
    else:
        yield find("worker process", f"started and fetched samples in {worker.answer['seconds']:.2f} s")


def memory_findings(machine: Machine, *, pinning_refused: bool) -> Iterator[Finding]:
    """Yield the findings about the memory's size, limits and speed."""
    group = machine.group
    if machine.memory is None:
        yield find("memory", "unknown on this system")
    else:
        total, left = machine.memory
        value = f"{show_bytes(left)} available of {show_bytes(total)}"
        advice = "A loader reserves all its slots. Lower batch_size or prefetch_factor, or free memory."
        yield find("memory", value, left < LITTLE_MEMORY and advice, "bad" if left < TOO_LITTLE else "note")

    value, advice = "none" if group.version is None else f"version {group.version}, no memory limit", ""
    if group.memory_limit is not None:
        used = f"{show_bytes(group.memory_used)} of {show_bytes(group.memory_limit)}"
        value = f"version {group.version}, {used}"
        if group.memory_used > 0.9 * group.memory_limit:
            advice = "The kernel kills processes at the limit. Raise the container's, e.g. docker run -m."
    yield find("control group", value, advice)

    # Tried, not looked up: only the call shows whether a sandbox allows memfd_create and its seals.
    try:
        arena = Arena(1 << 20, shared=True)
    except StagingMemoryError as error:
        advice = "Worker processes and GPUs need one. Allow memfd_create in this sandbox, or free memory."
        yield find("memory file", " ".join(str(error).split()), advice, "bad")
    else:
        if arena.descriptor is None:
            advice = "Worker processes need memory that they can map. Use worker_type='thread'."
            yield find("memory file", "not supported on this system", advice)
        else:
            how = ": reserved, sealed and mapped" if has_memory_files() else ", as an unnamed file"
            yield find("memory file", f"works{how}")

    if machine.shared is None:
        yield find("/dev/shm", "missing; gpuloader does not need it")
    else:
        total, free = machine.shared
        value = f"{show_bytes(free)} free of {show_bytes(total)}"
        advice = "gpuloader does not need it; torch and Paddle do. In a container: docker run --shm-size=8g."
        yield find("/dev/shm", value, free < SMALL_SHARED and advice)

    # The driver pins outside this limit, so a low limit matters only if pinning was refused.
    advice = "Pinning was refused. Try again without this limit: ulimit -l unlimited."
    value = "none" if machine.lockable is None else show_bytes(machine.lockable)
    yield find("memlock limit", value, pinning_refused and machine.lockable is not None and advice)

    bandwidth = host_bandwidth()
    advice = "That is slow. Other programs may be using this machine; several workers may stage faster."
    yield find("host copy", f"{bandwidth / 1e9:.1f} GB/s on one core", bandwidth < SLOW_HOST and advice)


def host_bandwidth() -> float:
    """Return the copy speed of one core in bytes per second: the upper bound on staging by one worker."""
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    return best_bandwidth(partial(np.copyto, target, source), COPIED)


def show_bytes(count: int) -> str:
    """Format a number of bytes for people.

    >>> show_bytes(8 << 20), show_bytes(1536), show_bytes(12)
    ('8.0 MiB', '1.5 KiB', '12 bytes')
    """
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
