"""Which process of a distributed run this is, as its launcher tells it."""

from __future__ import annotations

import os

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, and what most others set as well
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
)


def find_rank() -> tuple[int, int]:
    """Return the rank of this process and the world size, from the environment its launcher made.

    The first launcher of whose two variables one is set decides: torchrun, Slurm, Open MPI, PMI (MPICH and
    its kin), Paddle.

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
    for names in _LAUNCHERS:
        found = [name for name in names if name in os.environ]
        if len(found) == 1:
            (missing,) = set(names) - set(found)
            raise ValueError(
                f"the environment sets {found[0]}={os.environ[found[0]]!r} but not {missing}; "
                "set both or neither, or pass num_replicas and rank"
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


def _parse(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(
            f"the environment sets {name}={os.environ[name]!r}, which is no whole number"
        ) from None
