"""Workers and programs killed at random moments: no sample wrong, missing or repeated, and nothing left.

``GPULOADER_KILLS=100 GPULOADER_PARENT_KILLS=20`` runs more kills than the suite has time for.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import numpy as np
import pytest

from tests.fakes import is_running, wait_until
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, FaultyStream, Growing, loader

KILLS = int(os.environ.get("GPULOADER_KILLS", "30"))
PARENT_KILLS = int(os.environ.get("GPULOADER_PARENT_KILLS", "4"))

LOADERS = [
    (method, persistent, kind)
    for kind in ("map", "items", "growing")
    for method, persistent in (("forkserver", True), ("fork", False), ("forkserver", False), ("fork", True))
]


pytestmark = pytest.mark.usefixtures("shared_server", "nothing_left")


def make(method, persistent, kind, count=400):
    pause = partial(time.sleep, 0.0005)
    options = {"start_method": method, "persistent_workers": persistent, "on_worker_death": "respawn"}
    options |= {"num_workers": 3, "batch_size": 10}
    if kind == "items":
        return loader(FaultyStream(count, always=pause), **options)
    if kind == "growing":
        return loader(Growing(count, always=pause), ragged=["x"], **options)
    return loader(Faulty(count, always=pause), shuffle=True, **options)


def contents(batch):
    """Check every value of a batch and return its indices as a list."""
    if isinstance(batch, dict):
        lengths = np.diff(batch["x"].row_splits[0])
        indices = (lengths - 1) // 40
        np.testing.assert_array_equal(batch["x"].values, np.repeat(indices, lengths))
        return indices.tolist()
    assert (batch == batch[:, :1]).all()
    return batch[:, 0].tolist()


class Killer(threading.Thread):
    """Kills a worker now and then.

    Four deaths of workers that have not delivered anything in between are an error, and so are four deaths at
    one batch. So it spares a worker whose predecessor it killed, until that worker has answered, and a batch
    meets two deaths at most.
    """

    def __init__(self, draw, most):
        super().__init__(daemon=True)
        self.draw, self.most, self.kills = draw, most, 0
        self.over = threading.Event()
        self.fetch = None

    def run(self):
        while self.kills < self.most and not self.over.wait(self.draw.uniform(0.001, 0.03)):
            pids = [one.child.pid for one in self.list_workers() if is_running(one.child.pid)]
            if pids:
                with_what = self.draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                try:
                    os.kill(self.draw.choice(pids), with_what)
                except ProcessLookupError:
                    continue
                self.kills += 1

    def list_workers(self):
        """Return the workers that have answered since the last death, and hold no batch that met two."""
        workers = [] if self.fetch is None else list(self.fetch.pool.workers)
        return [one for one in workers if not one.deaths and all(job.deaths < 2 for job in list(one.jobs))]

    def watch(self, epoch):
        got = []
        for batch in (looped := iter(epoch)):
            self.fetch = looped._epoch and looped._epoch.fetch
            got.append(contents(batch))
        return got


def test_workers_are_killed_at_random_moments():
    draw = random.Random(20_240)
    expected, kills, runs = {}, 0, 0
    while kills < KILLS:
        one = LOADERS[runs % len(LOADERS)]
        runs += 1
        if one not in expected:
            expected[one] = [[contents(batch) for batch in epoch] for epoch in two_epochs(make(*one))]
            everything = sorted(itertools.chain(*expected[one][0]))
            assert everything == list(range(400))
        killer = Killer(draw, KILLS - kills)
        killer.start()
        tried = make(*one)
        try:
            got = [killer.watch(epoch) for epoch in two_epochs(tried)]
        finally:
            killer.over.set()
            killer.join()
        tried.close()
        assert got == expected[one], one
        kills += killer.kills
    print(f"{kills} workers killed in {runs} runs")


def two_epochs(one):
    yield one
    one.set_epoch(1)
    yield one
    one.close()


PROGRAM = """
import random, sys, threading, time
from functools import partial
from tests.fetch import faulty
from tests.fetch.processes.test_kills import make

method, persistent, kind, seed = sys.argv[1], sys.argv[2] == "True", sys.argv[3], int(sys.argv[4])
one = make(method, persistent, kind, 4000)
if seed % 2:
    dataset = getattr(one.dataset, "samples", one.dataset)
    dataset.always = partial(time.sleep, 1000 if seed % 4 == 1 else 0.2)
epoch = iter(one)
if seed % 2 == 0:
    next(epoch)
else:  # the first batch takes longer than this program lives
    threading.Thread(target=next, args=(epoch,), daemon=True).start()
    while len(faulty.offspring()) < 3:
        time.sleep(0.01)
print("begun", flush=True)
for batch in epoch:
    print(*faulty.offspring(), flush=True)
"""


@pytest.mark.parametrize("number", range(PARENT_KILLS))
def test_a_killed_program_takes_its_workers_with_it(number):
    draw = random.Random(number)
    method, persistent, kind = LOADERS[number % len(LOADERS)]
    shared = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), method, str(persistent), kind, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "begun\n"
        time.sleep(draw.uniform(0, 0.1))
        below = faulty.offspring(program.pid)
        program.kill()
    assert len(below) >= 3
    wait_until(lambda: not any(is_running(pid) for pid in below))
    wait_until(lambda: set(os.listdir("/dev/shm")) <= shared, 30)  # other programs may use it meanwhile
