"""The user that an attacked program runs as, and its environment."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def become(user: int | None) -> list[str]:
    """Return the words before a command that run it as a user without rights, except to read any file."""
    if user is None:
        return []
    rights = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *rights]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return dict(os.environ) | {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",  # otherwise importing NumPy starts threads, which a limit refuses
        "CUDA_VISIBLE_DEVICES": "",
    }
