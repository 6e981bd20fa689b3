"""Seeds from generators of random numbers: NumPy's, and PyTorch's without importing it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

if TYPE_CHECKING:
    import torch

GeneratorLike: TypeAlias = "np.random.Generator | np.random.RandomState | torch.Generator | None"
"""What a ``generator`` parameter accepts."""

_HIGHEST = 2**63 - 1


def is_torch_generator(value: object) -> TypeGuard[torch.Generator]:
    """Return whether this is a ``torch.Generator``.

    >>> is_torch_generator(np.random.default_rng())
    False
    """
    kind = getattr(sys.modules.get("torch"), "Generator", None)
    return isinstance(kind, type) and isinstance(value, kind)


def draw_seed(generator: GeneratorLike = None) -> int:
    """Draw a seed from a generator, which advances it.

    Parameters
    ----------
    generator : torch.Generator, numpy.random.Generator, numpy.random.RandomState, or None
        The generator to draw from. None draws from NumPy's global random state.

    Returns
    -------
    int
        From 0 to 2**63 - 1.

    Raises
    ------
    TypeError
        The generator is none of these.

    >>> draw_seed(np.random.default_rng(5)) == draw_seed(np.random.default_rng(5))
    True
    """
    if is_torch_generator(generator):
        lib: Any = sys.modules["torch"]
        return int(lib.empty((), dtype=lib.int64, device=generator.device).random_(generator=generator))
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(_HIGHEST))
    if generator is None or isinstance(generator, np.random.RandomState):
        draw = np.random.randint if generator is None else generator.randint
        return int(draw(_HIGHEST, dtype=np.int64))
    raise TypeError(
        "generator must be a torch.Generator, a numpy.random.Generator or a numpy.random.RandomState, got "
        f"{type(generator).__name__}"
    )
