"""Files that appear when they are whole, and locks that end with their process."""

import signal
import subprocess
import sys

import pytest

from gpuloader.system.platforms import locked, replacing


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"before"
    with replacing(path) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_keeps_others_out_and_ends_with_its_process(tmp_path):
    path = tmp_path / "lock"
    program = (
        "import sys; from pathlib import Path; from gpuloader.system.platforms import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError), locked(path, wait=False):
            pass
        holder.send_signal(signal.SIGKILL)
    with locked(path, wait=False), pytest.raises(BlockingIOError), locked(path, wait=False):
        pass


def test_without_locks_of_files_nothing_is_kept_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path / "lock"), locked(tmp_path / "lock", wait=False):
        pass
