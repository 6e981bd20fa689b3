"""Findings about faked machines, each with its verdict: software, GPUs, processors and memory."""

from dataclasses import replace

import pytest

from gpuloader import CPUPlace, CUDAPinnedPlace, CUDAPlace
from gpuloader.doctor import findings as module
from gpuloader.doctor.findings import (
    gpu_findings,
    memory_findings,
    node_findings,
    processor_findings,
    software_findings,
)
from gpuloader.doctor.trials import Outcome
from gpuloader.errors import StagingMemoryError, install_command
from gpuloader.system.cores import ControlGroup
from tests.doctor.machines import COPIES, GIB, GPU, LINUX, MIB, NO_DEVICES, Trials, cuda, named, verdicts

CUPY = {"numpy": "2.4.6", "cupy-cuda13x": "14.2.0"}
DRIVER = "580.65.06"
HANG = "no answer within 60 s"
FAST = {"pillow": "1.0", "simplejpeg": "1.1", "numba": "1.2"}
MEASURE = module.host_bandwidth


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch):
    """Let no test depend on how busy this machine is."""
    monkeypatch.setattr(module, "host_bandwidth", lambda: 9e9)


def look(trials=None, *, refused=False, **facts):
    """Return the findings about a machine with these facts, apart from those about GPUs."""
    machine = replace(LINUX, **facts)
    processors = processor_findings(machine, trials or Trials())
    return [*software_findings(machine), *processors, *memory_findings(machine, pinning_refused=refused)]


def with_packages(**versions):
    return {"distributions": {name.replace("_", "-"): version for name, version in versions.items()}}


def with_cores(allowed, quota):
    return {"allowed": allowed, "group": ControlGroup(2, processors=quota)}


def with_memory(free, limit=None, used=0):
    return {"memory": (64 * GIB, free), "group": ControlGroup(2, limit, used)}


NEARLY_FULL = ControlGroup(1, 4 * GIB, 4 * GIB - 1)


@pytest.mark.parametrize(
    ("facts", "name", "verdict", "value", "advice"),
    [
        ({}, "Python", "good", "3.12.1 on Linux x86_64", ""),
        ({"system": "Windows"}, "Python", "note", "on Windows", "worker_type='thread'"),
        ({"numpy": "1.25.2"}, "NumPy", "bad", "1.25.2", "1.26"),
        ({"numpy": "1.26.0"}, "NumPy", "good", "1.26.0", ""),
        ({"numpy": "2.5.0rc1"}, "NumPy", "good", "2.5.0rc1", ""),
        ({}, "gpuloader", "good", "not installed", ""),
        (with_packages(gpuloader="0.1.0"), "gpuloader", "good", "0.1.0", ""),
        ({}, "cloudpickle", "note", "not installed", "[workers]"),
        ({}, "threadpoolctl", "note", "not installed", "[workers]"),
        (with_packages(threadpoolctl="3.8.0"), "threadpoolctl", "good", "3.8.0", ""),
        ({}, "frameworks", "good", "none of torch, jax, paddle", ""),
        (with_packages(torch="2", paddlepaddle_gpu="3"), "frameworks", "good", "torch 2, paddle 3", ""),
        ({}, "kernels", "good", "crop", ""),
        ({"kernels": ()}, "kernels", "bad", "none found", "incomplete"),
        (with_packages(**FAST), "images", "good", "pillow 1.0, simplejpeg 1.1, numba 1.2", ""),
        ({"turbojpeg": True, **with_packages(**FAST)}, "images", "good", "numba 1.2, TurboJPEG 3", ""),
        ({"turbojpeg": True, **with_packages(numba="1.2")}, "images", "good", "numba 1.2, TurboJPEG 3", ""),
        ({}, "images", "good", "none of pillow, simplejpeg, numba", ""),
        (with_packages(pillow="1.0"), "images", "note", "pillow 1.0", "Without simplejpeg and numba"),
        (with_packages(pillow="1.0"), "images", "note", "pillow 1.0", "images-fast"),
        ({}, "cores", "good", "16 of 16 usable", ""),
        (with_cores(16, 99.0), "cores", "good", "16 of 16 usable", ""),
        (with_cores(4, None), "cores", "note", "4 of 16 usable (affinity)", "num_workers at 4"),
        (with_cores(16, 3.5), "cores", "note", "3.5 of 16 usable (control group)", "num_workers at 3"),
        (with_cores(4, 8.0), "cores", "note", "4 of 16 usable (affinity)", "num_workers at 4"),
        (with_cores(16, 0.5), "cores", "note", "0.5 of 16 usable (control group)", "num_workers at 1"),
        (with_cores(4, None), "cores", "note", "", "os.cpu_count() returns 16"),
        ({"threads": "4"}, "OMP_NUM_THREADS", "good", "4", ""),
        ({"threads": "4,2"}, "OMP_NUM_THREADS", "good", "4,2", ""),
        ({"threads": "many"}, "OMP_NUM_THREADS", "note", "'many'", "unset it"),
        ({"threads": "0"}, "OMP_NUM_THREADS", "note", "'0'", "unset it"),
        ({}, "OMP_NUM_THREADS", "good", "not set", ""),
        ({"file_limit": None}, "open files", "good", "10, no limit", ""),
        ({}, "open files", "good", "10 of 1,024", ""),
        ({"file_limit": 256}, "open files", "note", "10 of 256", "ulimit -n"),
        ({"file_limit": 64, "files_open": 40}, "open files", "bad", "40 of 64", "ulimit -n"),
        ({"files_open": 1000}, "open files", "bad", "1000 of 1,024", "ulimit -n"),
        ({}, "start method", "good", "fork, Python's default", ""),
        ({}, "worker process", "good", "started and fetched samples in 0.50 s", ""),
        ({"trials": Trials(worker=HANG)}, "worker process", "bad", HANG, "worker_type='thread'"),
        ({}, "memory", "good", "32.0 GiB available of 64.0 GiB", ""),
        (with_memory(GIB // 2), "memory", "note", "512.0 MiB", "batch_size"),
        (with_memory(32 * MIB), "memory", "bad", "32.0 MiB", "batch_size"),
        (with_memory(3 * GIB, 4 * GIB, GIB), "memory", "good", "3.0 GiB available of 64.0 GiB", ""),
        ({"memory": None}, "memory", "good", "unknown", ""),
        ({"group": ControlGroup()}, "control group", "good", "none", ""),
        ({"group": ControlGroup(1)}, "control group", "good", "version 1, no memory limit", ""),
        (with_memory(32 * GIB, 4 * GIB, GIB), "control group", "good", "version 2, 1.0 GiB of 4.0 GiB", ""),
        ({"group": NEARLY_FULL}, "control group", "note", "version 1, 4.0 GiB of 4.0 GiB", "kills"),
        ({}, "memory file", "good", "works", ""),
        ({"shared": None}, "/dev/shm", "good", "missing", ""),
        ({"shared": (64 * MIB, 64 * MIB)}, "/dev/shm", "note", "64.0 MiB free of 64.0 MiB", "--shm-size"),
        ({"shared": (8 * GIB, 9 * MIB)}, "/dev/shm", "note", "9.0 MiB free of 8.0 GiB", "--shm-size"),
        ({"shared": (8 * GIB, 8 * GIB)}, "/dev/shm", "good", "8.0 GiB free of 8.0 GiB", ""),
        ({}, "memlock limit", "good", "none", ""),
        ({"lockable": 8 * MIB}, "memlock limit", "good", "8.0 MiB", ""),
        ({"lockable": 8 * MIB, "refused": True}, "memlock limit", "note", "8.0 MiB", "ulimit -l"),
        ({"refused": True}, "memlock limit", "good", "none", ""),
        ({}, "host copy", "good", "9.0 GB/s", ""),
    ],
)
def test_a_finding(facts, name, verdict, value, advice):
    found = named(look(**facts), name)
    assert found.verdict == verdict
    assert value in found.value
    assert advice in found.advice
    assert bool(found.advice) == (verdict != "good")


def test_where_there_is_no_fork_server_no_worker_is_tried():
    trials = Trials()
    look(trials)
    assert trials.tried == [("worker",)]
    found = verdicts(look(trials, start_methods=("spawn",)))
    assert found["start method"] == "note"
    assert "worker process" not in found
    assert trials.tried == [("worker",)]


def test_a_memory_file_that_is_refused_is_bad(monkeypatch):
    def refuse(nbytes, shared):
        raise StagingMemoryError("1,048,576 bytes could not be reserved: [Errno 1] Operation not permitted")

    monkeypatch.setattr(module, "Arena", refuse)
    finding = named(look(), "memory file")
    assert finding.verdict == "bad"
    assert "Operation not permitted" in finding.value
    assert "memfd_create" in finding.advice


def test_the_speed_of_copies_is_measured_and_slow_ones_are_a_note(monkeypatch):
    assert MEASURE() > 0
    monkeypatch.setattr(module, "host_bandwidth", lambda: 1e9)
    assert named(look(), "host copy").verdict == "note"


def examine(installed, place=None, *, driver=DRIVER, gpus=None, **answers):
    """Return the findings about GPUs, whether pinning was refused, and what was tried."""
    seen = Outcome(problem=gpus) if isinstance(gpus, str) else Outcome(gpus or {})
    trials = Trials(**answers)
    machine = replace(LINUX, distributions=installed, driver=driver, cuda=seen)
    findings, copies = gpu_findings(machine, place, trials)
    return findings, bool(copies.answer.get("refusal")), trials.tried


def test_a_gpu_that_works():
    findings, refused, tried = examine(CUPY, gpus=cuda())
    assert set(verdicts(findings).values()) == {"good"}
    assert named(findings, "driver").value == "580.65.06, CUDA 13.0"
    assert named(findings, "CuPy").value == "cupy-cuda13x 14.2.0, built for CUDA 13.2"
    assert named(findings, "gpu:0").value == "NVIDIA H100, 80.0 GiB, compute capability 9.0"
    assert named(findings, "pinned copy").value == "50.0 GB/s to gpu:0"
    assert named(findings, "pageable copy").value == "9.0 GB/s to gpu:0"
    assert not refused
    assert tried == [("copies", "gpu:0")]
    older, _, _ = examine({"cupy-cuda12x": "14.2.0"}, gpus=cuda(runtime=12090))  # than the driver knows
    assert set(verdicts(older).values()) == {"good"}


def test_only_the_gpu_that_was_asked_for_is_tried():
    findings, _, tried = examine(CUPY, CUDAPlace(1), gpus=TWO)
    assert tried == [("copies", "gpu:1")]
    assert named(findings, "pageable copy").value == "9.0 GB/s to gpu:1"
    findings, _, tried = examine(CUPY, CPUPlace(), gpus=cuda())
    assert set(verdicts(findings).values()) == {"good"}
    assert tried == []


@pytest.mark.parametrize(("installed", "seen"), [({}, None), (CUPY, "no driver")])
def test_without_gpu_the_cpu_does_and_cupy_does_no_harm(installed, seen):
    gpus = seen and cuda(driver=0, devices=(), failure=seen)
    findings, _, tried = examine(installed, driver="", gpus=gpus)
    assert verdicts(findings) == {"driver": "note", "CuPy": "good"}
    assert tried == []


@pytest.mark.parametrize("place", [CUDAPlace(0), CUDAPinnedPlace()])
def test_a_gpu_that_is_asked_for_and_not_there_is_bad(place):
    findings, _, _ = examine({}, place, driver="")
    assert verdicts(findings) == {"driver": "bad", "CuPy": "bad"}
    assert "[cuda13]" in named(findings, "CuPy").advice


@pytest.mark.parametrize(("known", "extra"), [(13000, "cuda13"), (13030, "cuda13"), (12040, "cuda12")])
@pytest.mark.parametrize(("place", "verdict"), [(None, "note"), (CPUPlace(), "note"), (CUDAPlace(0), "bad")])
def test_a_gpu_without_cupy(known, extra, place, verdict):
    findings, _, _ = examine({}, place, gpus=cuda(cupy=None, runtime=0, driver=known, devices=()))
    cupy = named(findings, "CuPy")
    assert (cupy.value, cupy.verdict) == ("not installed", verdict)
    assert install_command(extra) in cupy.advice


OTHER = cuda(driver=12040, devices=(), failure="CUDARuntimeError: cudaErrorInsufficientDriver")
HIDDEN = cuda(devices=(), failure=NO_DEVICES)
UNLOADED = cuda(cupy=None, devices=(), failure="libcudart is not there")
UNWRITABLE = cuda(cupy=None, devices=(), failure="OSError: '/.cupy'", cure="set CUPY_CACHE_DIR to a folder")
BOTH = {"cupy-cuda12x": "14.0.0", "cupy-cuda13x": "14.2.0"}
NO_DRIVER = {"driver": "", "gpus": cuda(driver=0, devices=(), failure="no driver")}
TWO = cuda(devices=(GPU, GPU))
FOR_12 = ("supports only CUDA 12.4", f"pip uninstall cupy-cuda13x, then {install_command('cuda12')}")
OLD_DRIVER = {"driver": "550.54.15", "gpus": OTHER}


@pytest.mark.parametrize(
    ("installed", "place", "machine", "name", "verdict", "words"),
    [
        (CUPY, None, OLD_DRIVER, "CuPy", "bad", FOR_12),
        (CUPY, CUDAPlace(0), OLD_DRIVER, "CuPy", "bad", FOR_12),
        (CUPY, CPUPlace(), OLD_DRIVER, "CuPy", "note", FOR_12),
        (BOTH, None, {"gpus": cuda()}, "CuPy", "bad", ["uninstall all of them"]),
        (BOTH, None, NO_DRIVER, "CuPy", "note", []),
        (CUPY, None, {"gpus": HANG}, "CuPy", "bad", [HANG]),
        (CUPY, None, {"gpus": UNLOADED}, "CuPy", "bad", ["libcudart is not there"]),
        (CUPY, None, {"gpus": UNWRITABLE}, "CuPy", "bad", ["'/.cupy'", "To mend it: set CUPY_CACHE_DIR"]),
        (CUPY, None, {"gpus": HIDDEN}, "CuPy", "bad", ["cudaErrorNoDevice", "CUDA_VISIBLE_DEVICES"]),
        (CUPY, CUDAPlace(2), {"gpus": TWO}, "gpu:2", "bad", ["gpu:0 to gpu:1"]),
        (CUPY, None, {"gpus": cuda(nvrtc=False)}, "NVRTC", "note", ["[cuda13]"]),
        (CUPY, None, {"gpus": cuda(), "copies": {**COPIES, "pinned": 1.2e9}}, "pinned copy", "note", []),
        (CUPY, None, {"gpus": cuda(), "copies": HANG}, "copies to gpu:0", "bad", []),
        (CUPY, CUDAPinnedPlace(), {"gpus": cuda(), "copies": HANG}, "copies to gpu:0", "bad", []),
    ],
)
def test_what_is_wrong_with_a_gpu(installed, place, machine, name, verdict, words):
    findings, _, tried = examine(installed, place, **machine)
    found = named(findings, name)
    assert found.verdict == verdict
    assert [word for word in words if word not in found.advice] == []
    if name in ("CuPy", "gpu:2") and installed is not BOTH:
        assert tried == []


def test_page_locking_that_is_refused_is_a_note():
    refused = {**COPIES, "pinned": 0.0, "refusal": "cudaHostRegister: out of memory"}
    findings, was_refused, _ = examine(CUPY, gpus=cuda(), copies=refused)
    assert named(findings, "pinning").verdict == "note"
    assert "cudaHostRegister: out of memory" in named(findings, "pinning").value
    assert was_refused
    assert "pinned copy" not in verdicts(findings)
    assert named(findings, "pageable copy").verdict == "good"


FOUR = frozenset(range(4))
NODES = {0: FOUR, 1: frozenset(range(4, 8))}
ON_0 = "gpu:1 is on node 0 of 2; slots and workers go to its cores 1-2"
ON_1 = "gpu:0 is on node 1 of 2; slots and workers go to its cores 6"
UNKNOWN = "gpu:0 is on no known node of the 2"
FORBIDDEN = "gpu:0 is on node 1 of 2, and this process may not run there"


@pytest.mark.parametrize(
    ("nodes", "gpus", "cores", "found"),
    [
        (NODES, (1, 0), {1, 2, 6}, {ON_1: "", ON_0: ""}),
        (NODES, (1,), {0, 1}, {FORBIDDEN: "taskset -c 4-7"}),
        (NODES, (None,), FOUR, {UNKNOWN: "numactl"}),
        (NODES, (7,), FOUR, {UNKNOWN: "numactl"}),
        ({0: FOUR}, (0, 0), FOUR, {"one node; all memory is equally near": ""}),
        ({}, (None,), FOUR, {}),
        (NODES, (), FOUR, {}),
    ],
)
def test_each_gpu_has_a_line_about_the_cores_near_it(nodes, gpus, cores, found):
    machine = replace(LINUX, nodes=nodes, node_of_gpu=gpus, cores=frozenset(cores), cuda=Outcome(cuda()))
    findings = list(node_findings(machine))
    assert [one.value for one in findings] == [*found]
    for one, advice in zip(findings, found.values(), strict=True):
        assert (one.verdict, advice in one.advice) == ("note" if advice else "good", True)
    reported, _ = gpu_findings(machine, None, Trials())
    assert [one for one in reported if one.name == "NUMA"] == findings
