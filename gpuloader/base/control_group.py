"""Read the memory and CPU limits of this process's control group, version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNLIMITED = 1 << 60
"""Bytes; version 1 reports "no limit" as a number beyond this, the largest multiple of the page size."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Limits on this process, including those inherited from parent groups.

    Attributes
    ----------
    version : int or None
        1 or 2; None without control groups.
    memory_limit : int or None
        Memory limit in bytes; None if there is none.
    memory_used : int
        Bytes counted against that limit, minus the file cache, which the kernel reclaims on demand.
    processors : float or None
        CPU quota in processors; None if there is none.
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
        The folder that contains ``proc`` and ``sys``.

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
    """Return the path of this process's group for each controller; version 2 uses the key ''."""
    paths: dict[str, str] = {}
    for line in (read_text(file) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and its parents, as far as they exist; a container may see only the mount."""
    own = PurePosixPath(path.lstrip("/"))
    for part in (own, *own.parents):
        if ".." not in part.parts and (mount / part).is_dir():
            yield mount / part


def _tightest(
    groups: list[Path], limit_name: str, used_name: str, cached: tuple[str, ...]
) -> tuple[int | None, int]:
    """Return the limit and usage of the group with the least memory left."""
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
    """Return the text of a kernel file, or None if it is missing or unreadable."""
    try:
        return file.read_text()
    except OSError:
        return None
