"""What the machine has: software, GPUs, processors and memory, as one frozen value without a verdict."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader.doctor.trials import TRIAL_SECONDS, Attempt, Outcome
from gpuloader.kernels.compiler import kernel_names, read_source
from gpuloader.sources.images.turbojpeg import load_turbojpeg
from gpuloader.system import cores
from gpuloader.system.cores import ControlGroup, Cores, read_text
from gpuloader.system.platforms import allowed_cores, available_memory


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that the findings judge; sizes are bytes, and None means unknown or unlimited.

    `distributions` maps lower-case names to versions; `driver` is the NVIDIA kernel module's version, or "".
    `cuda` is what CuPy says (`gpuloader.devices.cuda.describe_machine`, and `nvrtc`).
    `node_of_gpu` has the NUMA node of each GPU, `cores` those that this process may run on. `memory` and
    `shared` (``/dev/shm``) are totals and what is free of them, within the control group's limit.
    """

    distributions: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    system: str = ""
    architecture: str = ""
    numpy: str = ""
    kernels: tuple[str, ...] = ()
    turbojpeg: bool = False
    driver: str = ""
    cuda: Outcome = field(default_factory=Outcome)
    nodes: Mapping[int, Cores] = field(default_factory=dict)
    node_of_gpu: tuple[int | None, ...] = ()
    cores: Cores = frozenset()
    processors: int = 1
    allowed: int = 1
    start_methods: tuple[str, ...] = ()
    threads: str = ""
    file_limit: int | None = None
    files_open: int = 0
    group: ControlGroup = field(default_factory=ControlGroup)
    memory: tuple[int, int] | None = None
    shared: tuple[int, int] | None = None
    lockable: int | None = None

    @property
    def cupy(self) -> dict[str, str]:
        """The installed CuPy distributions; more than one overwrite each other's files."""
        wanted = re.compile(r"cupy(-cuda\d+x|-rocm.*)?")
        return {name: version for name, version in self.distributions.items() if wanted.fullmatch(name)}

    @property
    def devices(self) -> list[list[Any]]:
        """Name, memory and compute capability of each GPU that CuPy can use."""
        return list(self.cuda.answer.get("devices", ()))


def read_machine(root: Path, attempt: Attempt) -> Machine:
    """Read the machine whose ``proc``, ``sys`` and ``dev`` lie below `root`.

    >>> read_machine(Path("/nowhere"), lambda *_, seconds: Outcome()).memory is None
    True
    """
    # The kernel's file, not nvidia-smi, which a container may lack.
    driver = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", read_text(root / "proc/driver/nvidia/version"))
    total = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo"), re.M)
    available = available_memory(root)
    shared, kernels = None, tuple[str, ...]()
    with suppress(OSError, AttributeError):  # missing, or Windows
        found = os.statvfs(root / "dev/shm")
        shared = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    with suppress(OSError):
        kernels = tuple(name for name in kernel_names() if read_source(name))
    machine = Machine(
        distributions=installed_distributions(),
        python=platform.python_version(),
        system=platform.system(),
        architecture=platform.machine(),
        numpy=np.__version__,
        kernels=kernels,
        turbojpeg=load_turbojpeg() is not None,
        driver=driver[1] if driver else "",
        nodes=cores.read_nodes(root),
        cores=cores.own_cores(),
        processors=os.cpu_count() or 1,
        allowed=allowed_cores(),
        # Python's default comes first.
        start_methods=tuple(multiprocessing.get_all_start_methods()),
        threads=os.environ.get("OMP_NUM_THREADS", "").strip(),
        file_limit=read_limit("RLIMIT_NOFILE"),
        files_open=len(list((root / "proc/self/fd").glob("*"))),
        group=cores.read_control_group(root),
        memory=(int(total[1]) * 1024, available) if total and available is not None else None,
        shared=shared,
        lockable=read_limit("RLIMIT_MEMLOCK"),
    )
    if not (machine.cupy or machine.driver):  # the trial could only report that both are missing
        return machine
    # In another process: a broken driver may hang or crash at the first call of CUDA.
    cuda = attempt("gpus", seconds=TRIAL_SECONDS)
    nodes = tuple(cores.find_node(bus, root) for bus in cuda.answer.get("buses", ()))
    return replace(machine, cuda=cuda, node_of_gpu=nodes)


def installed_distributions() -> dict[str, str]:
    """Return the version of every installed distribution by its lower-case name, without importing any.

    >>> "numpy" in installed_distributions()
    True
    """
    # Backwards, so that the first on the path counts: Python imports that one. Folders that an interrupted
    # pip leaves behind have no name.
    found = reversed(list(importlib.metadata.distributions()))
    return {name.lower(): one.version for one in found if (name := one.metadata["Name"])}


def read_limit(name: str) -> int | None:
    """Return one of this process's soft limits; None if there is none, or the system has no such limit."""
    try:
        import resource

        soft, _ = resource.getrlimit(getattr(resource, name))
    except (ImportError, AttributeError, ValueError):  # Windows has no limits, some systems not this one
        return None
    return None if soft == resource.RLIM_INFINITY else soft
