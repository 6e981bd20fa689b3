"""Places: values that name where batches are delivered; they can be created on any machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuloader.errors import PlaceError
from gpuloader.foreign import current_cuda_device, name_place


@dataclass(frozen=True, slots=True)
class CPUPlace:
    """Host memory; batches are NumPy arrays that lie in the staging slot itself.

    >>> CPUPlace() == CPUPlace(), CPUPlace()
    (True, CPUPlace())
    """


@dataclass(frozen=True, slots=True)
class CUDAPinnedPlace:
    """Page-locked host memory; batches are NumPy arrays that a GPU can copy from at full speed.

    >>> CUDAPinnedPlace()
    CUDAPinnedPlace()
    """


@dataclass(frozen=True, slots=True)
class CUDAPlace:
    """The memory of one GPU; batches are CuPy arrays.

    Parameters
    ----------
    index : int
        The GPU's index among the visible ones, from 0.

    Raises
    ------
    PlaceError
        `index` is not an integer of 0 or more. Whether the GPU exists is checked on first use.

    >>> CUDAPlace(1), CUDAPlace(0) == CUDAPlace(0)
    (CUDAPlace(1), True)
    """

    index: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.index, bool) or not isinstance(self.index, int) or self.index < 0:
            raise PlaceError(f"a CUDA place needs a device index of 0 or more, got {self.index!r}")

    def __repr__(self) -> str:
        return f"CUDAPlace({self.index})"


@dataclass(frozen=True, slots=True, eq=False)
class CustomPlace:
    """A place with its own device object; the simulated device enters the pipeline this way.

    Parameters
    ----------
    device : object
        An implementation of `gpuloader.devices.base.Device`.
    """

    device: object


Place = CPUPlace | CUDAPlace | CUDAPinnedPlace | CustomPlace


def parse_place(place: object) -> Place:
    """Return the place that `place` names.

    Parameters
    ----------
    place : Place, str, torch.device or place of Paddle
        A place; one of 'cpu', 'gpu', 'gpu:N' and 'gpu_pinned' (the strings Paddle takes); or one of 'cuda'
        and 'cuda:N' (PyTorch's). 'gpu' is the first GPU, 'cuda' PyTorch's current one.

    Raises
    ------
    PlaceError
        The argument is none of these.

    >>> parse_place("gpu:1"), parse_place("cuda:1"), parse_place("cpu")
    (CUDAPlace(1), CUDAPlace(1), CPUPlace())
    """
    if isinstance(place, CPUPlace | CUDAPlace | CUDAPinnedPlace | CustomPlace):
        return place
    named = name_place(place)
    if isinstance(named, str):
        if named == "cpu":
            return CPUPlace()
        if named == "gpu_pinned":
            return CUDAPinnedPlace()
        if named == "cuda":
            return CUDAPlace(current_cuda_device())
        if match := re.fullmatch(r"(?:gpu|cuda)(?::(\d+))?", named):
            return CUDAPlace(int(match[1] or 0))
    raise PlaceError(
        f"not a place: {place!r}; pass CPUPlace(), CUDAPlace(index), CUDAPinnedPlace(), a torch.device of "
        "type 'cpu' or 'cuda', or one of the strings 'cpu', 'gpu:0', 'cuda:0', 'gpu_pinned'"
    )


def parse_places(places: object) -> tuple[Place, ...]:
    """Return one place or several as a tuple; each may be whatever `parse_place` accepts.

    Raises
    ------
    PlaceError
        An argument is not a place, or the list is empty.

    >>> parse_places([CPUPlace(), "gpu:0"])
    (CPUPlace(), CUDAPlace(0))
    """
    if isinstance(places, Iterable) and not isinstance(places, str):
        parsed = tuple(parse_place(place) for place in places)
    else:
        parsed = (parse_place(places),)
    if not parsed:
        raise PlaceError("got an empty list of places; pass at least one place")
    return parsed


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Return `device_count` CPU places; None means the environment variable CPU_NUM, or 1 if it is not set.

    Raises
    ------
    ValueError
        The count is not an integer of 1 or more.

    >>> cpu_places(2)
    [CPUPlace(), CPUPlace()]
    """
    return [CPUPlace() for _ in range(_count_places(device_count))]


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """Return `device_count` places in page-locked host memory; None counts as for `cpu_places`.

    Raises
    ------
    ValueError
        The count is not an integer of 1 or more.

    >>> cuda_pinned_places(2)
    [CUDAPinnedPlace(), CUDAPinnedPlace()]
    """
    return [CUDAPinnedPlace() for _ in range(_count_places(device_count))]


def _count_places(device_count: int | None) -> int:
    count = environment_count("CPU_NUM", 1) if device_count is None else device_count
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"device_count must be an integer of 1 or more, got {count!r}")
    return count


def environment_count(name: str, default: int) -> int:
    """Return the environment variable `name` as an integer of 1 or more, or `default` if it is not set."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"the environment variable {name} must be an integer of 1 or more, got {text!r}")
    return int(text)
