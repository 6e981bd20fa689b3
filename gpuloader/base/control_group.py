"""What the control group of this process allows, in either of the kernel's two ways of telling it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNLIMITED = 1 << 60
"""The first version tells "no limit" as the greatest number of whole pages."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Limits on this process; those of the groups above its own count as well.

    Attributes
    ----------
    version : int or None
        1 or 2; None where there are no control groups.
    memory_limit : int or None
        Bytes; None where nothing limits them.
    memory_used : int
        Bytes counted against that limit, less the file cache, which the kernel gives back when asked.
    processors : float or None
        How many processors' time it may take; None where nothing limits it.
    """

    version: int | None = None
    memory_limit: int | None = None
    memory_used: int = 0
    processors: float | None = None


def read_control_group(root: Path = Path("/")) -> ControlGroup:
    """Return the limits of this process's control group.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` lie.

    >>> read_control_group(Path("/nowhere"))
    ControlGroup(version=None, memory_limit=None, memory_used=0, processors=None)
    """
    paths = _own_paths(root / "proc/self/cgroup")
    mount = root / "sys/fs/cgroup"
    if (mount / "cgroup.controllers").is_file():
        groups = list(_upwards(mount, paths.get("", "/")))
        limit, used = _tightest(groups, "memory.max", "memory.current", ("inactive_file", "active_file"))
        return ControlGroup(2, limit, used, min(filter(None, map(_quota_2, groups)), default=None))
    memory = list(_upwards(mount / "memory", paths.get("memory", "/")))
    if not (mount / "memory").is_dir():
        return ControlGroup()
    cached = ("total_inactive_file", "total_active_file")
    limit, used = _tightest(memory, "memory.limit_in_bytes", "memory.usage_in_bytes", cached)
    processors = [
        quota
        for name in ("cpu", "cpu,cpuacct")
        for group in _upwards(mount / name, paths.get("cpu", "/"))
        if (quota := _quota_1(group))
    ]
    return ControlGroup(1, limit, used, min(processors, default=None))


def _own_paths(file: Path) -> dict[str, str]:
    """Return the path of this process's group for each controller; of the second version, for ''."""
    paths: dict[str, str] = {}
    for line in (read_text(file) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and those above it; in a container, only the mount may be there."""
    own = PurePosixPath(path.lstrip("/"))
    for part in (own, *own.parents):
        if ".." not in part.parts and (mount / part).is_dir():
            yield mount / part


def _tightest(
    groups: list[Path], limit_name: str, used_name: str, cached: tuple[str, ...]
) -> tuple[int | None, int]:
    """Return limit and use of the group that has least left."""
    found: list[tuple[int, int]] = []
    for group in groups:
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is not None and limit < _UNLIMITED:
            lines = [line.split() for line in (read_text(group / "memory.stat") or "").splitlines()]
            cache = sum(int(line[1]) for line in lines if line[0] in cached)
            found.append((limit, max((used or 0) - cache, 0)))
    return min(found, key=lambda one: one[0] - one[1]) if found else (None, 0)


def _quota_2(group: Path) -> float | None:
    words = (read_text(group / "cpu.max") or "max").split()
    return None if words[0] == "max" else int(words[0]) / int(words[1])


def _quota_1(group: Path) -> float | None:
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _number(file: Path) -> int | None:
    text = (read_text(file) or "").strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def read_text(file: Path) -> str | None:
    """Return what a file of the kernel's says, or None where it is not there or not ours to read."""
    try:
        return file.read_text()
    except OSError:
        return None
