"""Whole programs: how they end, what they leave behind, and workers that die."""

import json
import subprocess
import sys
import textwrap

import pytest

from tests.fakes import is_running, wait_until
from tests.torch_suite.libraries import on_both

PROGRAM = """
    import ctypes, os, resource, signal, sys, torch
    from {module} import DataLoader, Dataset, IterableDataset

    class Pictures(IterableDataset):
        def __init__(self, count):
            self.count = count

        def __iter__(self):
            for _ in range(self.count):
                yield torch.randn(8, 8)

    class Rows(Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, index):
            return torch.full((3,), os.getpid())

    class Crashing(Rows):
        def __getitem__(self, index):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            return ctypes.string_at(0)

    if __name__ == "__main__":
"""


# To import PyTorch takes seconds, so one process does it, and forks for each program.
PARENT = """
import json, os, sys
import gpuloader.torch, torch.utils.data
while line := os.read(0, 65536):
    program, out, err = json.loads(line)
    if (child := os.fork()) == 0:
        for number, name in enumerate((os.devnull, out, err)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)
exec(compile(program, "program", "exec"), {"__name__": "__main__"})
"""


@pytest.fixture(scope="module")
def parent():
    """Return a process that forks for each program."""
    command = [sys.executable, "-W", "ignore", "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def run(parent, lib, tmp_path):
    """Return a function that runs a program with the library's loader, and returns what that printed."""
    module = "gpuloader.torch" if lib.name == "gpuloader" else "torch.utils.data"

    def run(body):
        head = textwrap.dedent(PROGRAM.format(module=module))
        program = head + textwrap.indent(textwrap.dedent(body), "    ")
        out, err = tmp_path / "out", tmp_path / "err"
        print(json.dumps([program, str(out), str(err)]), file=parent.stdin, flush=True)
        code = int(parent.stdout.readline())
        return subprocess.CompletedProcess(program, code, out.read_text(), err.read_text())

    return run


def test_batches_need_descriptors(lib, run):
    """PyTorch opens a descriptor per tensor; ours lie in memory that was mapped before."""
    done = run(
        """
        kept = []
        loader = DataLoader(Pictures(200), multiprocessing_context="fork", num_workers=1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        try:
            for batch in loader:
                kept.append(batch)
            print("all", len(kept))
        except RuntimeError as error:
            print("ulimit" if "ulimit -n" in str(error) else error)
        """
    )
    expected = "all 200" if lib.differs("no-descriptors-per-tensor") else "ulimit"
    assert done.stdout.strip() == expected, done


ENDS = [
    ("", 0, True, True),
    ("raise RuntimeError('the loop fails')", 1, False, False),
    ("sys.exit(3)", 3, False, True),
    ("os.kill(os.getpid(), 9)", -9, False, False),
]


@pytest.mark.parametrize(("lib", "end"), on_both(ENDS, ENDS[:1]))
def test_a_program_ends_with_its_workers(lib, end, run):
    statement, code, holding, stay = end
    done = run(
        f"""
        loader = DataLoader(Rows(), batch_size=2, num_workers=2, persistent_workers={stay}, pin_memory=True,
                            multiprocessing_context={"fork" if stay else None!r})
        epoch = {"iter(loader)" if holding else "loader"}
        for number, batch in enumerate(epoch):
            print(int(batch[0, 0]), flush=True)
            if number == 4:
                break
        {statement}
        """
    )
    assert done.returncode == code, done
    assert code == 1 or not done.stderr, done
    workers = set(map(int, done.stdout.split()))
    assert workers
    wait_until(lambda: not any(map(is_running, workers)))


DEATHS = [("a crash", False), ("a kill", True)]


@pytest.mark.parametrize(("lib", "death"), on_both(DEATHS, DEATHS[1:]))
def test_a_worker_dies(lib, death, run):
    death, persistent_workers = death
    done = run(
        f"""
        dataset = {"Crashing()" if death == "a crash" else "Rows()"}
        loader = DataLoader(dataset, num_workers=2, persistent_workers={persistent_workers})
        try:
            for batch in loader:
                os.kill(int(batch[0, 0]), signal.SIGKILL)
        except (RuntimeError, ConnectionError) as error:
            print(type(error).__name__, error)
        """
    )
    if lib.name == "gpuloader":
        assert done.stdout.startswith("WorkerError"), done
    else:  # while a worker of PyTorch sends a batch, any error of the connection may come first
        assert done.stdout or done.returncode, done
