"""Runs programs, and checks that they leave no process behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from tests.fakes import wait_until
from tests.processes import marked

LIMIT = 240
"""Seconds that a run may take."""

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def run(script, *arguments, processes=1, torchrun=False):
    """Run a script on as many ranks, which torchrun starts if asked, and return what they print."""
    # Forks of one process that has imported the frameworks were faster, but two ranks of one once waited for
    # each other for three minutes.
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(launcher if torchrun else []), script, *arguments]
    mark = f"gpuloader-test-{uuid.uuid4()}"
    inherited = environment() | {"GPULOADER_TEST": mark}
    environments = [inherited] if torchrun else [inherited | of_rank for of_rank in ranks(processes)]
    with tempfile.TemporaryFile("w+") as printed:
        started = [
            subprocess.Popen(
                list(map(str, command)), env=one, stdout=printed, stderr=printed, start_new_session=True
            )
            for one in environments
        ]
        try:
            codes = [process.wait(LIMIT) for process in started]
        finally:
            for left in marked(mark) if any(process.poll() is None for process in started) else ():
                os.kill(left, signal.SIGKILL)
            for process in started:
                process.wait()
        printed.seek(0)
        output = printed.read()
    assert not any(codes), output
    wait_until(lambda: not marked(mark))  # init reaps processes that have ended
    return output


def written(script, runs, folder, processes):
    """Run a script that makes all runs, and return what each of two ranks has written of each.

    It starts the second rank itself if one process is asked for.
    """
    run(script, folder, json.dumps(runs), processes=processes)
    return seen_by_ranks(runs, folder)


def seen_by_ranks(runs, folder):
    """Return what each of two ranks has written of each run."""
    return {name: [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(2)] for name in runs}


def ranks(count):
    """Return the variables that torchrun sets for each of so many ranks; none for a single one."""
    if count == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    every = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(count)]
    return [{name: str(value) for name, value in one.items()} for one in every]


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
