"""Runs programs, and checks that they leave no process behind."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from tests.fakes import wait_until
from tests.processes import marked

LIMIT = 180
"""Seconds that a run may take."""

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def run(script, *arguments, processes=1):
    """Run a script, with torchrun if several processes are asked for, and return what it prints."""
    # Forks of one process that has imported the frameworks were faster, but two ranks of one once waited for
    # each other for three minutes.
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(launcher if processes > 1 else []), script, *arguments]
    mark = f"gpuloader-test-{uuid.uuid4()}"
    with subprocess.Popen(
        list(map(str, command)),
        env=environment() | {"GPULOADER_TEST": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output = process.communicate(timeout=LIMIT)[0]
        finally:
            for left in marked(mark) if process.returncode is None else ():
                os.kill(left, signal.SIGKILL)
    assert not process.returncode, output
    wait_until(lambda: not marked(mark))  # init reaps processes that have ended
    return output


def leave():
    """End a rank that has met the others for the last time, without the teardown of C++."""
    # A thread of C++ that is still running at exit aborts the process now and then ("terminate called without
    # an active exception"), although the process group was destroyed. Which one is not known: a program of
    # torch alone showed it, too, but none of 300 ranks of another, which gathered over gloo beside 20 busy
    # processes and then destroyed their group.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def environment():
    """Return an environment without a launcher's variables, for CPUs and one thread per process."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
