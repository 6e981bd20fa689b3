"""Limits of control groups, read from files below a temporary root."""

from gpuloader.system.cores import ControlGroup, read_control_group

UNLIMITED = 9223372036854771712


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_without_control_groups_nothing_is_limited(tmp_path):
    assert read_control_group(tmp_path) == ControlGroup()


def test_the_second_version_in_a_container(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/memory.max": 1000,
            "sys/fs/cgroup/memory.current": 700,
            "sys/fs/cgroup/memory.stat": "anon 400\ninactive_file 200\nactive_file 50\nfile_mapped 9",
            "sys/fs/cgroup/cpu.max": "150000 100000",
        },
    )
    assert read_control_group(tmp_path) == ControlGroup(2, 1000, 450, 1.5)


def test_the_tightest_of_the_groups_above_counts(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/slice/memory.max": 5000,
            "sys/fs/cgroup/slice/memory.current": 4900,
            "sys/fs/cgroup/slice/cpu.max": "400000 100000",
            "sys/fs/cgroup/slice/job/memory.max": 2000,
            "sys/fs/cgroup/slice/job/memory.current": 100,
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000",
        },
    )
    assert read_control_group(tmp_path) == ControlGroup(2, 5000, 4900, 4.0)


def test_the_second_version_without_limits(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/job/memory.max": "max",
            "sys/fs/cgroup/job/memory.current": 10,
            "sys/fs/cgroup/job/cpu.max": "max 100000",
        },
    )
    assert read_control_group(tmp_path) == ControlGroup(2)


def test_the_first_version(tmp_path):
    memory = "sys/fs/cgroup/memory/docker/job"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/job\n1:cpu,cpuacct:/docker/job\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 10**9,
            f"{memory}/memory.limit_in_bytes": 8000,
            f"{memory}/memory.usage_in_bytes": 7000,
            f"{memory}/memory.stat": "cache 9\ntotal_inactive_file 1000\ntotal_active_file 500",
            "sys/fs/cgroup/cpu,cpuacct/docker/job/cpu.cfs_quota_us": 250000,
            "sys/fs/cgroup/cpu,cpuacct/docker/job/cpu.cfs_period_us": 100000,
        },
    )
    assert read_control_group(tmp_path) == ControlGroup(1, 8000, 5500, 2.5)


def test_the_first_version_in_a_container_that_sees_only_its_own_group(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/somewhere/else\n1:cpu:/docker/somewhere/else",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 4096,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 1024,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
        },
    )
    assert read_control_group(tmp_path) == ControlGroup(1, 4096, 1024)


def test_the_first_version_without_limits(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 1024,
        },
    )
    assert read_control_group(tmp_path) == ControlGroup(1)


def test_a_path_that_leads_out_of_the_mount_is_not_followed(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../beside",
            "sys/fs/cgroup/cgroup.controllers": "memory",
            "sys/fs/beside/memory.max": 1,
            "sys/fs/beside/memory.current": 1,
        },
    )
    assert read_control_group(tmp_path) == ControlGroup(2)
