"""What each worker of the tests would otherwise import or search for by itself: half of its start."""

from contextlib import suppress

import numpy.random

with suppress(ImportError):
    import threadpoolctl

    _found = threadpoolctl.ThreadpoolController()
    threadpoolctl.threadpool_limits = lambda limits: _found.limit(limits=limits)


class OneSample:
    """A dataset that needs this module, and so lets a fork server import it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return numpy.random.randint(1)
