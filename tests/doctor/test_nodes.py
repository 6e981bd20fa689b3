"""Findings about NUMA nodes, on machines that are made of files."""

import pytest

from gpuloader.doctor.nodes import node_findings, read_gpu_nodes
from tests.doctor.machines import cuda, named
from tests.doctor.test_gpus import CUPY, examine
from tests.system.test_numa import BUS, make_machine


def find(root, *, buses=(BUS,), allowed=range(8)):
    return node_findings(read_gpu_nodes(buses, root, frozenset(allowed)))


def test_slots_and_workers_go_to_the_gpus_node(tmp_path):
    [finding] = find(make_machine(tmp_path))
    assert finding.verdict == "good"
    assert finding.value == "gpu:0 is on node 1 of 2; slots and workers go to its cores 4-7"


def test_each_gpu_has_a_line(tmp_path):
    other = "0000:af:00.0"
    findings = find(
        make_machine(tmp_path, gpus=((BUS, 1), (other, 0))), buses=(BUS, other), allowed=[1, 2, 6]
    )
    assert [one.value.partition("; ")[2] for one in findings] == [
        "slots and workers go to its cores 6",
        "slots and workers go to its cores 1-2",
    ]


def test_a_process_that_may_not_run_there_is_told_how(tmp_path):
    [finding] = find(make_machine(tmp_path), allowed=[0, 1])
    assert finding.verdict == "note"
    assert "may not run there" in finding.value
    assert "taskset -c 4-7" in finding.advice


@pytest.mark.parametrize("node", [-1, 7])
def test_a_gpu_on_no_known_node(tmp_path, node):
    [finding] = find(make_machine(tmp_path, gpus=((BUS, node),)))
    assert (finding.value, finding.verdict) == ("gpu:0 is on no known node of the 2", "note")


def test_one_node_and_no_nodes_and_no_gpu(tmp_path):
    assert find(tmp_path) == []
    make_machine(tmp_path, nodes=("0-7",), gpus=((BUS, 0),))
    assert [one.value for one in find(tmp_path)] == ["one node; all memory is equally near"]
    assert find(tmp_path, buses=()) == []


def test_the_doctor_reports_it_among_the_gpus(tmp_path):
    findings, _, _ = examine(make_machine(tmp_path), CUPY, gpus=cuda(buses=[BUS]))
    assert named(findings, "NUMA").value.startswith("gpu:0 is on node 1 of 2")
