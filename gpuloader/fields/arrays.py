"""Which array library a batch belongs to, found without importing any."""

from __future__ import annotations

import sys
from typing import Any


def array_module(array: Any) -> Any:
    """Return the module whose functions work on `array`: numpy, cupy, or another of the array standard.

    >>> import numpy as np
    >>> array_module(np.zeros(3)).__name__
    'numpy'
    """
    return sys.modules[type(array).__module__.partition(".")[0]]
