"""Limits of control groups, and cores near a device, read from files below a temporary root."""

import os
import threading
from unittest.mock import Mock

import pytest

from gpuloader.system.cores import (
    ControlGroup,
    bind,
    call_near,
    find_cores_near,
    find_node,
    own_cores,
    parse_cores,
    read_control_group,
    read_nodes,
    show_cores,
)

UNLIMITED = 9223372036854771712


GROUPS = {
    "no control groups": (ControlGroup(), {}),
    "version 2 in a container": (
        ControlGroup(2, 1000, 450, 1.5),
        {
            "proc/self/cgroup": "0::/",
            "/cgroup.controllers": "cpu memory",
            "/memory.max": 1000,
            "/memory.current": 700,
            "/memory.stat": "anon 400\ninactive_file 200\nactive_file 50\nfile_mapped 9",
            "/cpu.max": "150000 100000",
        },
    ),
    "the tightest of the groups above counts": (
        ControlGroup(2, 5000, 4900, 4.0),
        {
            "proc/self/cgroup": "0::/slice/job",
            "/cgroup.controllers": "cpu memory",
            "/slice/memory.max": 5000,
            "/slice/memory.current": 4900,
            "/slice/cpu.max": "400000 100000",
            "/slice/job/memory.max": 2000,
            "/slice/job/memory.current": 100,
            "/slice/job/cpu.max": "max 100000",
        },
    ),
    "version 2 without limits, and a path that leads out of the mount is not followed": (
        ControlGroup(2),
        {
            "proc/self/cgroup": "0::/../beside",
            "/cgroup.controllers": "cpu memory",
            "/memory.max": "max",
            "/memory.current": 10,
            "/cpu.max": "max 100000",
            "sys/fs/beside/memory.max": 1,
            "sys/fs/beside/memory.current": 1,
        },
    ),
    "version 1": (
        ControlGroup(1, 8000, 5500, 2.5),
        {
            "proc/self/cgroup": "4:memory:/docker/job\n1:cpu,cpuacct:/docker/job\n0::/",
            "/memory/memory.limit_in_bytes": UNLIMITED,
            "/memory/memory.usage_in_bytes": 10**9,
            "/memory/docker/job/memory.limit_in_bytes": 8000,
            "/memory/docker/job/memory.usage_in_bytes": 7000,
            "/memory/docker/job/memory.stat": "total_inactive_file 1000\ntotal_active_file 500",
            "/cpu,cpuacct/docker/job/cpu.cfs_quota_us": 250000,
            "/cpu,cpuacct/docker/job/cpu.cfs_period_us": 100000,
        },
    ),
    "version 1 without limits": (
        ControlGroup(1),
        {
            "proc/self/cgroup": "4:memory:/",
            "/memory/memory.limit_in_bytes": UNLIMITED,
            "/memory/memory.usage_in_bytes": 1024,
        },
    ),
    "version 1 in a container that sees only its own group": (
        ControlGroup(1, 4096, 1024),
        {
            "proc/self/cgroup": "4:memory:/docker/somewhere/else\n1:cpu:/docker/somewhere/else",
            "/memory/memory.limit_in_bytes": 4096,
            "/memory/memory.usage_in_bytes": 1024,
            "/cpu/cpu.cfs_quota_us": -1,
            "/cpu/cpu.cfs_period_us": 100000,
        },
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_limits_of_control_groups(tmp_path, case):
    expected, files = GROUPS[case]
    for name, text in files.items():
        path = tmp_path / (f"sys/fs/cgroup{name}" if name.startswith("/") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert read_control_group(tmp_path) == expected


# NUMA nodes of machines that are made of files: which cores are near a GPU, and what is bound to them.


BUS = "0000:3B:00.0"


def make_machine(root, nodes=("0-3", "4-7"), gpus=((BUS, 1),)):
    """Write the files of a machine with these cores on its nodes, and these GPUs on its PCI bus."""
    for number, cores in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    (root / "sys/devices/system/node/has_cpu").write_text("0-1\n")
    for bus_id, node in gpus:
        folder = root / "sys/bus/pci/devices" / bus_id.lower()
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return root


def near(root, *bus_ids, allowed=range(8)):
    return set(find_cores_near(lambda: bus_ids or (BUS,), root, frozenset(allowed)))


def test_nodes_and_devices_are_found(tmp_path):
    make_machine(tmp_path, nodes=("0-1,4", "2-3,5", ""))  # the last has memory only
    assert read_nodes(tmp_path) == {0: {0, 1, 4}, 1: {2, 3, 5}}
    assert find_node(BUS, tmp_path) == 1
    assert find_node("0000:00:00.0", tmp_path) is None


def test_a_lack_of_descriptors_hides_the_nodes_and_is_no_error(monkeypatch):
    def refuse(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "listdir", refuse)
    assert read_nodes() == {}


def test_only_cores_of_this_process_count(tmp_path):
    """The user's affinity, and the cpuset of a container, which shows up there."""
    make_machine(tmp_path)
    assert near(tmp_path, allowed=[2, 3, 4, 5]) == {4, 5}
    assert near(tmp_path, allowed=[0, 1]) == set()  # the user wants another node
    assert near(tmp_path, allowed=[5, 6]) == set()  # there is nothing to restrict


@pytest.mark.parametrize(
    ("nodes", "node"), [(("0-7",), 0), (("0-3", "4-7"), -1), (("0-3", "4-7"), 9), (("0-3", "oops"), 1)]
)
def test_a_machine_where_no_cores_are_nearer(tmp_path, nodes, node):
    assert near(make_machine(tmp_path, nodes, [(BUS, node)])) == set()


def test_cores_near_the_gpus_that_are_used(tmp_path):
    buses = [f"0000:{number}0:00.0" for number in range(3)]
    assert near(tmp_path) == set()  # without the files of a machine
    make_machine(tmp_path, gpus=zip(buses, (1, 1, 0), strict=True))
    assert near(tmp_path, buses[0]) == near(tmp_path, *buses[:2]) == {4, 5, 6, 7}
    assert near(tmp_path, *buses) == set()


def test_a_machine_with_one_node_is_not_asked_for_its_devices(tmp_path):
    make_machine(tmp_path, nodes=("0-7",))
    assert find_cores_near(lambda: pytest.fail("asked"), tmp_path) == frozenset()


@pytest.mark.parametrize("cores", [[], [5], [0, 1, 2], [0, 2, 3, 9, 10, 12]])
def test_lists_of_cores_are_read_as_they_are_written(cores):
    assert parse_cores(show_cores(cores)) == set(cores)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
class TestBinding:
    def test_concerns_one_thread_and_ends_with_it(self):
        before, [core, *_] = own_cores(), sorted(own_cores())
        assert call_near(frozenset({core}), own_cores) == {core}
        with pytest.raises(ZeroDivisionError):
            call_near(before, lambda: 1 / 0)
        assert own_cores() == before

    def test_that_is_not_possible_changes_nothing(self, monkeypatch):
        before = own_cores()
        assert call_near(frozenset({5000}), own_cores) == before
        monkeypatch.setattr(os, "sched_setaffinity", Mock(side_effect=PermissionError))
        assert call_near(before, lambda: 7) == 7

    def test_a_system_without_affinity(self, monkeypatch):
        monkeypatch.delattr(os, "sched_getaffinity")
        assert own_cores() == frozenset()
        bind(frozenset({0}))
        assert call_near(frozenset({0}), threading.active_count)
