"""Find this process's rank in a distributed run, from torch.distributed or the launcher's environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun; most other launchers set these as well
    # MPI before Slurm: in an allocation, the processes of mpirun inherit its Slurm variables.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
)


def find_rank() -> tuple[int, int]:
    """Return the rank of this process and the world size.

    An initialized process group of torch.distributed takes precedence; torch is not imported for that.
    Otherwise the first launcher with at least one of its two variables set decides. They are checked in this
    order: torchrun, Open MPI, PMI (MPICH and its derivatives), Slurm, Paddle.

    Lightning's launcher sets no RANK. The rank is then LOCAL_RANK, plus NODE_RANK (or GROUP_RANK) times
    LOCAL_WORLD_SIZE.

    Returns
    -------
    tuple of int
        Rank, from 0, and world size; (0, 1) without a known launcher.

    Raises
    ------
    ValueError
        One of the two variables is missing or not an integer, or the rank is not below the world size.

    Examples
    --------
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": "4"}):
    ...     find_rank()
    (1, 4)
    """
    return _ask_group() or _read_variables(_LAUNCHERS)


def find_torch_rank() -> tuple[int, int]:
    """Return the rank and world size of a run of PyTorch; (0, 1) if there is none, and in case of doubt.

    Only a process group, torchrun and Lightning count. The variables of Slurm and MPI do not, because a
    single process inherits them in a batch script, and PyTorch itself does not read them.

    Examples
    --------
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}):
    ...     find_torch_rank()
    (0, 1)
    """
    try:
        return _ask_group() or _read_variables(_LAUNCHERS[:1])
    except ValueError:
        return 0, 1


def _ask_group() -> tuple[int, int] | None:
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        return int(group.get_rank()), int(group.get_world_size())
    return None


def _read_variables(launchers: Sequence[tuple[str, ...]]) -> tuple[int, int]:
    for *names, _ in launchers:
        found = [name for name in names if name in os.environ]
        if found == ["WORLD_SIZE"] and "LOCAL_RANK" in os.environ:
            return _check(_count_on_nodes(), _parse("WORLD_SIZE"), "LOCAL_RANK", "WORLD_SIZE")
        if len(found) == 1:
            (missing,) = set(names) - set(found)
            raise ValueError(
                f"the environment sets {found[0]}={os.environ[found[0]]!r} but not {missing}; "
                "set both or neither, or pass the rank in the program"
            )
        if found:
            rank, size = (_parse(name) for name in names)
            return _check(rank, size, *names)
    return 0, 1


def _count_on_nodes() -> int:
    """Return the rank of a process whose launcher numbers processes per node and sets no RANK."""
    name = next((name for name in ("NODE_RANK", "GROUP_RANK") if name in os.environ), None)
    node = 0 if name is None else _parse(name)
    if not node:
        return _parse("LOCAL_RANK")
    if "LOCAL_WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"the environment sets {name}={node}, LOCAL_RANK and WORLD_SIZE, which do not determine the "
            "rank; set RANK or LOCAL_WORLD_SIZE, use the loader after the process group is initialized, or "
            "pass the rank in the program"
        )
    return node * _parse("LOCAL_WORLD_SIZE") + _parse("LOCAL_RANK")


def _check(rank: int, size: int, rank_name: str, size_name: str) -> tuple[int, int]:
    if not 0 <= rank < size:
        raise ValueError(
            f"the environment sets {rank_name}={os.environ[rank_name]} and {size_name}={size}, which makes "
            f"this rank {rank}; a rank must be 0 or more and below the world size"
        )
    return rank, size


def find_local_rank() -> int:
    """Return the local rank that the launcher set: this process's number on its machine, from 0; 0 if unset.

    Raises
    ------
    ValueError
        The variable is not an integer of 0 or more.

    Examples
    --------
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"LOCAL_RANK": "3"}):
    ...     find_local_rank()
    3
    """
    for *_, name in _LAUNCHERS:
        if name in os.environ:
            local = _parse(name)
            if local < 0:
                raise ValueError(f"the environment sets {name}={local}; a local rank must be 0 or more")
            return local
    return 0


def _parse(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(
            f"the environment sets {name}={os.environ[name]!r}, which is not an integer"
        ) from None
