"""Functions that run at once, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_threads(targets: list[Callable[[], object]]) -> None:
    """Run functions in threads, and raise the first error of any."""
    errors: list[BaseException] = []

    def run(target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
