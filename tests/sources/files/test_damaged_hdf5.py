"""HDF5 files whose inside is damaged, and programs that end while they read one."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from gpuloader import DataFileError, HDF5Dataset

h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize("arrays", [None, ["x"]])
@pytest.mark.parametrize("signature", [b"SNOD", b"TREE", b"HEAP"])  # of its table, a tree over it, its names
def test_a_damaged_group_is_an_error_that_names_the_file(tmp_path, signature, arrays):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(8)
    whole = path.read_bytes()
    assert signature in whole
    path.write_bytes(whole.replace(signature, b"????"))
    with pytest.raises(DataFileError, match=r"a\.h5"):
        HDF5Dataset(path, arrays)


def test_a_program_ends_while_its_daemon_threads_read(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.random.rand(512, 4096), chunks=(8, 4096), compression="gzip")
    program = f"""
        import threading
        import time

        from gpuloader import HDF5Dataset

        dataset = HDF5Dataset({str(path)!r})

        def read():
            while True:
                dataset.__getitems__(range(0, 512, 8))

        for _ in range(3):
            threading.Thread(target=read, daemon=True).start()
        time.sleep(0.2)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, timeout=60).returncode == 0
