"""Computing ahead: other cores work on what later tests ask for, such as compiled code or programs."""

import os
from concurrent.futures import Future, ThreadPoolExecutor

from gpuloader.system.platforms import usable_cores


class Ahead:
    """A function whose results for known arguments are computed ahead, by a thread for each further core.

    What has not begun when it is asked for is computed at once, in the thread that asks.

    Parameters
    ----------
    compute : callable
        The function. Several threads call it at a time.
    known : list of tuple
        The arguments that will be asked for, in about this order.
    """

    def __init__(self, compute, known):
        self.compute = compute
        self.pool = ThreadPoolExecutor(max(usable_cores() - 1, 1))
        # With pytest-xdist the other cores run tests. Programs that run ahead would look to other tests of
        # this process like something left behind.
        known = [] if "PYTEST_XDIST_WORKER" in os.environ else known
        self.results = {arguments: self.pool.submit(compute, *arguments) for arguments in known}

    def __call__(self, *arguments):
        result = self.results.get(arguments)
        if result is None or result.cancel():
            result = self.results[arguments] = Future()
            result.set_running_or_notify_cancel()  # another thread that asks must wait, and not cancel this
            try:
                result.set_result(self.compute(*arguments))
            except Exception as error:  # kept, so as not to compute for every example of hypothesis
                result.set_exception(error)
        return result.result()

    def close(self):
        """Forget what has not begun, and wait for the rest."""
        self.pool.shutdown(cancel_futures=True)
