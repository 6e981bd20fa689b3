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
MEASURE = module.host_bandwidth


def software(installed=None, **facts):
    """Return the findings about a machine with these distributions, or those of the whole extra."""
    return list(software_findings(replace(LINUX, distributions=installed or {}, **facts)))


@pytest.mark.parametrize(
    ("version", "system", "verdict"),
    [((3, 10, 4), "Linux", "bad"), ((3, 11, 0), "Linux", "good"), ((3, 13, 1), "Windows", "note")],
)
def test_python(version, system, verdict):
    finding = named(software(python=version, system=system), "Python")
    assert (finding.value, finding.verdict) == (f"{'.'.join(map(str, version))} on {system} x86_64", verdict)


@pytest.mark.parametrize(
    ("version", "verdict"), [("1.25.2", "bad"), ("1.26.0", "good"), ("2.5.0rc1", "good")]
)
def test_numpy(version, verdict):
    assert named(software(numpy=version), "NumPy").verdict == verdict


def test_packages_that_are_made_use_of_are_noted_when_missing():
    findings = software({"gpuloader": "0.1.0", "threadpoolctl": "3.8.0"})
    assert verdicts(findings)["cloudpickle"] == "note"
    assert "[workers]" in named(findings, "cloudpickle").advice
    assert verdicts(findings)["threadpoolctl"] == "good"
    assert named(findings, "gpuloader").value == "0.1.0"


def test_frameworks_are_named_and_none_is_all_right():
    assert named(software(), "frameworks").verdict == "good"
    some = named(software({"torch": "2.13.0", "paddlepaddle-gpu": "3.3.1"}), "frameworks")
    assert some.value == "torch 2.13.0, paddle 3.3.1"


@pytest.mark.parametrize(
    ("installed", "turbojpeg", "value", "verdict"),
    [
        (("pillow", "simplejpeg", "numba"), False, "pillow 1.0, simplejpeg 1.0, numba 1.0", "good"),
        (
            ("pillow", "simplejpeg", "numba"),
            True,
            "pillow 1.0, simplejpeg 1.0, numba 1.0, TurboJPEG 3",
            "good",
        ),
        ((), False, "none of pillow, simplejpeg, numba", "good"),
        (("numba",), True, "numba 1.0, TurboJPEG 3", "good"),
        (("pillow",), False, "pillow 1.0", "note"),
    ],
)
def test_pictures_need_no_package_but_take_longer_without_some(installed, turbojpeg, value, verdict):
    finding = named(software(dict.fromkeys(installed, "1.0"), turbojpeg=turbojpeg), "images")
    assert (finding.value, finding.verdict) == (value, verdict)
    if verdict == "note":
        assert "Without simplejpeg and numba" in finding.advice
        assert "images-fast" in finding.advice


def test_a_package_without_kernels_is_incomplete():
    assert named(software(), "kernels").value == "crop"
    assert named(software(kernels=()), "kernels").verdict == "bad"


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
    assert named(findings, "page-locked copy").value == "50.0 GB/s to gpu:0"
    assert named(findings, "pageable copy").value == "9.0 GB/s to gpu:0"
    assert not refused
    assert tried == [("copies", "gpu:0")]


def test_without_gpu_the_cpu_does_and_cupy_does_no_harm():
    for installed, seen in (
        ({"numpy": "2.4.6"}, None),
        (CUPY, cuda(driver=0, devices=(), failure="no driver")),
    ):
        findings, _, tried = examine(installed, driver="", gpus=seen)
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
HANG = "no answer within 60 s"


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
        (CUPY, None, {"gpus": cuda(), "copies": {**COPIES, "pinned": 1.2e9}}, "page-locked copy", "note", []),
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


def test_cupy_for_an_older_cuda_than_the_driver_knows_is_all_right():
    findings, _, _ = examine({"cupy-cuda12x": "14.2.0"}, gpus=cuda(runtime=12090))
    assert set(verdicts(findings).values()) == {"good"}


def test_page_locking_that_is_refused_is_a_note():
    refused = {**COPIES, "pinned": 0.0, "refusal": "cudaHostRegister: out of memory"}
    findings, was_refused, _ = examine(CUPY, gpus=cuda(), copies=refused)
    assert named(findings, "page-locking").verdict == "note"
    assert "cudaHostRegister: out of memory" in named(findings, "page-locking").value
    assert was_refused
    assert "page-locked copy" not in verdicts(findings)
    assert named(findings, "pageable copy").verdict == "good"


def test_the_gpu_that_was_asked_for_is_tried():
    findings, _, tried = examine(CUPY, CUDAPlace(1), gpus=TWO)
    assert tried[-1] == ("copies", "gpu:1")
    assert named(findings, "pageable copy").value == "9.0 GB/s to gpu:1"


def test_asked_for_the_cpu_nothing_is_copied():
    findings, _, tried = examine(CUPY, CPUPlace(), gpus=cuda())
    assert set(verdicts(findings).values()) == {"good"}
    assert tried == []


NODES = replace(LINUX, nodes={0: frozenset(range(4)), 1: frozenset(range(4, 8))}, cores=frozenset(range(8)))


def test_each_gpu_has_a_line_about_the_cores_near_it():
    findings = node_findings(replace(NODES, node_of_gpu=(1, 0), cores=frozenset({1, 2, 6})))
    assert [(one.value, one.verdict) for one in findings] == [
        ("gpu:0 is on node 1 of 2; slots and workers go to its cores 6", "good"),
        ("gpu:1 is on node 0 of 2; slots and workers go to its cores 1-2", "good"),
    ]


def test_a_process_that_may_not_run_there_is_told_how():
    [finding] = node_findings(replace(NODES, node_of_gpu=(1,), cores=frozenset({0, 1})))
    assert finding.verdict == "note"
    assert "may not run there" in finding.value
    assert "taskset -c 4-7" in finding.advice


@pytest.mark.parametrize("node", [None, 7])
def test_a_gpu_on_no_known_node(node):
    [finding] = node_findings(replace(NODES, node_of_gpu=(node,)))
    assert (finding.value, finding.verdict) == ("gpu:0 is on no known node of the 2", "note")


def test_one_node_and_no_nodes_and_no_gpu():
    assert list(node_findings(replace(NODES, nodes={}, node_of_gpu=(None,)))) == []
    one = replace(NODES, nodes={0: frozenset(range(8))}, node_of_gpu=(0, 0))
    assert [found.value for found in node_findings(one)] == ["one node; all memory is equally near"]
    assert list(node_findings(NODES)) == []


def test_nodes_are_reported_among_the_gpus():
    machine = replace(NODES, distributions=CUPY, driver=DRIVER, cuda=Outcome(cuda()), node_of_gpu=(1,))
    findings, _ = gpu_findings(machine, None, Trials())
    assert named(findings, "NUMA").value.startswith("gpu:0 is on node 1 of 2")


def processors(trials=None, **facts):
    return list(processor_findings(replace(LINUX, **facts), trials or Trials()))


def test_a_machine_without_limits():
    trials = Trials()
    findings = processors(trials)
    assert set(verdicts(findings).values()) == {"good"}
    assert named(findings, "cores").value == "16 of 16 usable"
    assert named(findings, "worker process").value == "started and fetched samples in 0.50 s"
    assert trials.tried == [("worker",)]


@pytest.mark.parametrize(
    ("allowed", "quota", "value", "most"),
    [
        (4, None, "4 of 16 usable (affinity)", "num_workers at 4"),
        (16, 3.5, "3.5 of 16 usable (control group)", "num_workers at 3"),
        (4, 8.0, "4 of 16 usable (affinity)", "num_workers at 4"),
        (16, 0.5, "0.5 of 16 usable (control group)", "num_workers at 1"),
    ],
)
def test_fewer_cores_than_the_machine_has_are_a_note(allowed, quota, value, most):
    finding = named(processors(allowed=allowed, group=ControlGroup(2, processors=quota)), "cores")
    assert (finding.value, finding.verdict) == (value, "note")
    assert most in finding.advice
    assert "16" in finding.advice


def test_a_quota_beyond_the_cores_limits_nothing():
    assert named(processors(group=ControlGroup(2, processors=99.0)), "cores").verdict == "good"


@pytest.mark.parametrize(
    ("value", "verdict"), [("4", "good"), ("4,2", "good"), ("many", "note"), ("0", "note"), ("", "good")]
)
def test_numbers_of_threads(value, verdict):
    assert named(processors(threads=value), "OMP_NUM_THREADS").verdict == verdict


@pytest.mark.parametrize(
    ("limit", "opened", "verdict"),
    [(None, 9, "good"), (1024, 10, "good"), (256, 10, "note"), (64, 40, "bad"), (1024, 1000, "bad")],
)
def test_open_files(limit, opened, verdict):
    assert named(processors(file_limit=limit, files_open=opened), "open files").verdict == verdict


@pytest.mark.parametrize("problem", ["no answer within 60 s", "OSError: Operation not permitted"])
def test_a_worker_that_does_not_start_is_bad(problem):
    worker = named(processors(Trials(worker=problem)), "worker process")
    assert (worker.value, worker.verdict) == (problem, "bad")
    assert "worker_type='thread'" in worker.advice


def test_where_there_is_no_fork_server_none_is_tried():
    trials = Trials()
    findings = processors(trials, start_methods=("spawn",), file_limit=None)
    assert verdicts(findings) == {
        "cores": "good",
        "OMP_NUM_THREADS": "good",
        "open files": "good",
        "start method": "note",
    }
    assert trials.tried == []


def memory(*, pinning_refused=False, **facts):
    return list(memory_findings(replace(LINUX, **facts), pinning_refused=pinning_refused))


def test_the_speed_of_copies_is_measured():
    assert MEASURE() > 0


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch):
    """Let no test depend on how busy this machine is."""
    monkeypatch.setattr(module, "host_bandwidth", lambda: 9e9)


def test_a_machine_with_enough():
    assert set(verdicts(memory()).values()) == {"good"}


@pytest.mark.parametrize(
    ("available", "group", "verdict"),
    [
        (32 * GIB, ControlGroup(2), "good"),
        (GIB // 2, ControlGroup(2), "note"),
        (32 * MIB, ControlGroup(2), "bad"),
        (32 * GIB, ControlGroup(2, 4 * GIB, GIB), "good"),
        (32 * GIB, ControlGroup(2, 4 * GIB, 4 * GIB - 500 * MIB), "note"),
        (32 * GIB, ControlGroup(1, 4 * GIB, 4 * GIB - 5 * MIB), "bad"),
        (None, ControlGroup(), "good"),
    ],
)
def test_what_is_available(available, group, verdict):
    assert named(memory(memory_available=available, group=group), "memory").verdict == verdict


@pytest.mark.parametrize(
    ("group", "value", "verdict"),
    [
        (ControlGroup(), "none", "good"),
        (ControlGroup(1), "version 1, no memory limit", "good"),
        (ControlGroup(2, 4 * GIB, GIB), "version 2, 1.0 GiB of 4.0 GiB", "good"),
        (ControlGroup(2, 4 * GIB, 4 * GIB - 1), "version 2, 4.0 GiB of 4.0 GiB", "note"),
    ],
)
def test_control_groups(group, value, verdict):
    finding = named(memory(group=group), "control group")
    assert (finding.value, finding.verdict) == (value, verdict)


def test_a_memory_file_that_is_refused_is_bad(monkeypatch):
    def refuse(nbytes, shared):
        raise StagingMemoryError("1,048,576 bytes could not be reserved: [Errno 1] Operation not permitted")

    monkeypatch.setattr(module, "Arena", refuse)
    finding = named(memory(), "memory file")
    assert finding.verdict == "bad"
    assert "Operation not permitted" in finding.value
    assert "memfd_create" in finding.advice


@pytest.mark.parametrize(
    ("size", "free", "verdict"),
    [
        (None, None, "good"),
        (64 * MIB, 64 * MIB, "note"),
        (8 * GIB, 9 * MIB, "note"),
        (8 * GIB, 8 * GIB, "good"),
    ],
)
def test_dev_shm(size, free, verdict):
    assert named(memory(shared=size, shared_free=free), "/dev/shm").verdict == verdict


@pytest.mark.parametrize(
    ("limit", "refused", "verdict"),
    [(None, False, "good"), (8 * MIB, False, "good"), (8 * MIB, True, "note"), (None, True, "good")],
)
def test_a_limit_on_locked_memory_matters_where_locking_was_refused(limit, refused, verdict):
    finding = named(memory(lockable=limit, pinning_refused=refused), "memlock limit")
    assert finding.verdict == verdict
    assert bool(finding.advice) == (verdict == "note")


def test_slow_copies_are_a_note(monkeypatch):
    assert module.host_bandwidth() > 0
    monkeypatch.setattr(module, "host_bandwidth", lambda: 1e9)
    assert named(memory(), "host copy").verdict == "note"
