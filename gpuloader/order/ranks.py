"""Which process of a distributed run this is, as torch.distributed knows it or as its launcher tells it."""

from __future__ import annotations

import os
import sys

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun, and what most others set as well
    # Before Slurm: what mpirun starts inside an allocation inherits the variables of whoever ran mpirun.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
)


def find_rank() -> tuple[int, int]:
    """Return the rank of this process and the world size.

    A process group of torch.distributed decides, where one is initialised; torch is not imported for that.
    Otherwise the first launcher of whose two variables one is set: torchrun, Open MPI, PMI (MPICH and its
    kin), Slurm, Paddle.

    Returns
    -------
    tuple of int
        Rank from 0, and world size; (0, 1) where no launcher is known.

    Raises
    ------
    ValueError
        One variable of the pair is missing, no whole number, or the rank is not below the world size.

    Examples
    --------
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": "4"}):
    ...     find_rank()
    (1, 4)
    """
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        return int(group.get_rank()), int(group.get_world_size())
    for *names, _ in _LAUNCHERS:
        found = [name for name in names if name in os.environ]
        if len(found) == 1:
            (missing,) = set(names) - set(found)
            raise ValueError(
                f"the environment sets {found[0]}={os.environ[found[0]]!r} but not {missing}; "
                "set both or neither, or say in the program which rank this is"
            )
        if found:
            rank, size = (_parse(name) for name in names)
            if not 0 <= rank < size:
                raise ValueError(
                    f"the environment sets {names[0]}={rank} and {names[1]}={size}; "
                    "a rank is 0 or more and below the world size"
                )
            return rank, size
    return 0, 1


def find_local_rank() -> int:
    """Return which of the processes on this machine this is, from 0, as the launcher says; 0 if it does not.

    Raises
    ------
    ValueError
        The variable is no whole number of 0 or more.

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
                raise ValueError(f"the environment sets {name}={local}; a local rank is 0 or more")
            return local
    return 0


def _parse(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(
            f"the environment sets {name}={os.environ[name]!r}, which is no whole number"
        ) from None
