"""Which rank and worker runs the calling code, for datasets that divide their items among them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun; most other launchers set these as well
    # MPI before Slurm: in an allocation, the processes of mpirun inherit its Slurm variables.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
)


def find_rank(launchers: Sequence[tuple[str, ...]] = _LAUNCHERS) -> tuple[int, int]:
    """Return the rank of this process, from 0, and the world size; (0, 1) without a known launcher.

    An initialized process group of torch.distributed takes precedence. Otherwise the first launcher with at
    least one of its two variables set determines both, in this order: torchrun, Open MPI, PMI (MPICH and its
    derivatives), Slurm, Paddle. Without RANK, as under Lightning, the rank is LOCAL_RANK, plus NODE_RANK (or
    GROUP_RANK) times LOCAL_WORLD_SIZE. An inconsistent environment raises `ValueError`.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": "4"}):
    ...     find_rank()
    (1, 4)
    """
    group = sys.modules.get("torch.distributed")  # a program that has not imported it has no process group
    if group is not None and group.is_available() and group.is_initialized():
        return int(group.get_rank()), int(group.get_world_size())
    # Each name by itself: listing `os.environ` decodes all of it, and a cluster sets hundreds of names.
    for *names, _ in launchers:
        found = list(filter(os.environ.__contains__, names))
        # Lightning's launcher sets the local rank and the size, but not RANK.
        if found == ["WORLD_SIZE"] and "LOCAL_RANK" in os.environ:
            return _check(_count_on_nodes(), _parse("WORLD_SIZE"), "LOCAL_RANK", "WORLD_SIZE")
        # One variable alone is a mistake of the launcher. Treating it as a single process would make every
        # process read everything.
        if len(found) == 1:
            (missing,) = set(names) - set(found)
            raise ValueError(
                f"the environment sets {found[0]}={os.environ[found[0]]!r} but not {missing}; "
                "set both or neither, or pass the rank in the program"
            )
        if found:
            return _check(_parse(names[0]), _parse(names[1]), *names)
    return 0, 1


def find_torch_rank(*, waits: bool = True) -> tuple[int, int]:
    """Return the rank and world size of a PyTorch run; (0, 1) if there is none, and in case of doubt.

    Under Accelerate, loaders are divided when they are prepared, and the program means to read the others
    whole. If this `waits`, that goes for a program that imports it, until there is a process group.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}):
    ...     find_torch_rank()
    (0, 1)
    """
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.PartialState._shared_state:
        return 0, 1
    try:
        # Not Slurm's and MPI's variables: a single process in a batch script inherits them, and PyTorch
        # itself does not read them. And without a process group, a program that imports Accelerate may yet
        # begin to use it; until then a loader has the length that it has afterwards. RANK without WORLD_SIZE
        # is in doubt.
        counts = (accelerate is None or not waits) and "WORLD_SIZE" in os.environ
        return find_rank(_LAUNCHERS[:1] if counts else ())
    except ValueError:
        return 0, 1


def _count_on_nodes() -> int:
    """Return the rank of a process whose launcher numbers processes per node and sets no RANK."""
    name = next((name for name in ("NODE_RANK", "GROUP_RANK") if name in os.environ), None)
    node = 0 if name is None else _parse(name)
    if not node:  # on the first node, the local rank is the rank
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
        raise ValueError(f"the environment sets {name}={os.environ[name]!r}, not an integer") from None


# The worker that runs the calling thread, and what it tells the dataset.

WORKER_MODULES = ("torch.utils.data._utils.worker", "paddle.io.dataloader.worker")
"""Where PyTorch and Paddle keep the information about their worker processes."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's number, seed and dataset.

    Attributes
    ----------
    id : int
        The worker's number, from 0 to ``num_workers - 1``.
    num_workers : int
        The number of workers.
    seed : int
        The worker's seed, different for each worker and epoch.
    dataset : object
        The worker's copy of the dataset.
    ranks : tuple of int or None
        Rank and world size; if None, `gpuloader.order.worker_info.find_rank` determines them.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    ranks: tuple[int, int] | None = None

    @property
    def rank(self) -> int:
        """The rank of the loader's process in the distributed run, from 0."""
        return self._find_ranks()[0]

    @property
    def world_size(self) -> int:
        """The number of processes in the run; 1 without a known launcher."""
        return self._find_ranks()[1]

    def _find_ranks(self) -> tuple[int, int]:
        # Counted: a dataset that asks for the rank may divide its items itself, and then the loader does not
        # warn that every rank reads everything.
        _present.rank_questions += 1
        return self.ranks or find_rank()


class _PresentWorker(threading.local):
    info: WorkerInfo | None = None
    rank_questions: int = 0


_present = _PresentWorker()


def get_worker_info() -> WorkerInfo | None:
    """Return information about the calling worker, or None outside workers, as in the main process.

    An `IterableDataset` calls this in its ``__iter__`` to find its worker's part of the items. If it does
    not, every worker yields all items. A dataset that also divides its files among ranks takes part number
    ``info.rank * info.num_workers + info.id`` of ``info.world_size * info.num_workers``.

    If the loader divides the epoch among ranks (``shard``), every dataset must yield all items in the same
    order on every rank and worker. A call in ``__iter__`` then returns worker 0 of 1, on rank 0 of 1.

    In a worker process of PyTorch's or Paddle's own loader, this returns what their function returns.

    Examples
    --------
    >>> from gpuloader import DataLoader, IterableDataset
    >>> class Squares(IterableDataset):
    ...     def __iter__(self):
    ...         info = get_worker_info()
    ...         first, step = (0, 1) if info is None else (info.id, info.num_workers)
    ...         return (number * number for number in range(first, 6, step))
    >>> loader = DataLoader(Squares(), places="cpu", num_workers=2, worker_type="thread")
    >>> sorted(int(square[0]) for square in loader)
    [0, 1, 4, 9, 16, 25]
    """
    if _present.info is not None:
        return _present.info
    for name in WORKER_MODULES:
        found: Any = getattr(sys.modules.get(name), "_worker_info", None)
        if found is not None:
            return WorkerInfo(found.id, found.num_workers, found.seed, found.dataset)
    return None


def own_worker_info() -> WorkerInfo | None:
    """Return information about the calling worker of a loader of this package; None in any other thread."""
    return _present.info


def find_share(*, of_ranks: bool = True) -> tuple[int, int]:
    """Return which part of a dataset, shared by all workers of all ranks, the calling thread reads.

    Returns the number of the part, from 0, and the number of parts. `of_ranks` is False if each rank has its
    own dataset.

    >>> find_share(of_ranks=False)
    (0, 1)
    """
    info = _present.info
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    rank, ranks = ask_ranks()  # even if ranks have their own: the dataset was divided with them in mind
    if not of_ranks:
        return worker, workers
    # Rank by rank, so that a rank has the same parts with any number of workers.
    return rank + worker * ranks, ranks * workers


def exchange_worker(info: WorkerInfo | None) -> WorkerInfo | None:
    """Make the calling thread the given worker and return the previous one, for restoring it later."""
    before, _present.info = _present.info, info
    return before


def ask_ranks() -> tuple[int, int]:
    """Return the rank and world size for a dataset that divides its items among ranks, in a worker or not."""
    return (_present.info or WorkerInfo(0, 1, 0, None))._find_ranks()


def count_rank_questions() -> int:
    """Return how often code in the calling thread has asked for the rank or the world size."""
    return _present.rank_questions
