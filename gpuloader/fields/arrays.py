"""Find the library an array belongs to, without importing any."""

from __future__ import annotations

import sys
from typing import Any


def array_module(array: Any) -> Any:
    """Return the top-level module of the array's type: numpy, cupy or another array library.

    >>> import numpy as np
    >>> array_module(np.zeros(3)).__name__
    'numpy'
    """
    return sys.modules[type(array).__module__.partition(".")[0]]
