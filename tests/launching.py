"""Runs programs in one process or several, and checks that they leave no process behind."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tests.processes import marked

LIMIT = 180
"""Seconds that a run may take."""

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def run(script, *arguments, processes=1):
    """Run a script, with torchrun if several processes are asked for, and return what it prints."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return run_together([[*(launcher if processes > 1 else []), script, *arguments]], [{}])


def run_ranks(script, *arguments, processes=2):
    """Run a script on several ranks, with the variables that torchrun would set; return what they print."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    return run_together([[script, *arguments]] * processes, ranks)


def run_together(commands, variables):
    """Run Python with these arguments and environment variables at the same time; return what they print."""
    mark = f"gpuloader-test-{uuid.uuid4()}"
    started = []
    try:
        for command, own in zip(commands, variables, strict=True):
            process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=environment()
                | {name: str(value) for name, value in own.items()}
                | {"GPULOADER_TEST": mark},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            started.append(process)
        output = "\n".join(process.communicate(timeout=LIMIT)[0] for process in started)
    finally:
        for left in marked(mark) if any(process.returncode is None for process in started) else ():
            os.kill(left, signal.SIGKILL)
        for process in started:
            process.wait()
    assert not any(process.returncode for process in started), output
    deadline = time.monotonic() + 10
    while marked(mark):
        assert time.monotonic() < deadline, "processes of the run are still there"
        time.sleep(0.05)  # wait for init to reap processes that have ended
    return output


def environment():
    """Return an environment without a launcher's variables, for CPUs and one thread per process."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
