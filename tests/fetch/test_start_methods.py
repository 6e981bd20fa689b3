"""Which start method is chosen if the user names none, and what is said about it."""

from functools import partial

import pytest

from gpuloader.system.processes import default_method
from tests.fetch import faulty
from tests.fetch.telling import parent_of
from tests.sample_sets import Made

PREAMBLE = """
    import os, sys, warnings
    import numpy as np
    from gpuloader import DataLoader
    from tests.fetch.test_start_methods import Parents, Framed

    def parents(loader):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = {pid for _ in range(2) for batch in loader for pid in batch.tolist()}
        return found == {os.getpid()}, [str(one.message) for one in said]

    def told(loader):
        return [line for line in str(loader.explain()).splitlines() if line.startswith("Workers")]
"""

SERVED = "Workers start by 'forkserver', because"


Parents = partial(Made, parent_of, 4)


class Framed(Made):
    """The same samples, with a table."""

    def __init__(self, frame):
        super().__init__(parent_of, 4)
        self.frame = frame

    def __getitem__(self, index):
        assert self.frame["x"][index] == index * 2
        return super().__getitem__(index)


def run(code):
    done = faulty.run_program(PREAMBLE + code)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


forking = pytest.mark.skipif(default_method() != "fork", reason="Python does not fork here")


def test_the_start_method_and_what_is_said_of_it():
    """As Python chooses, as the loader was told, and as the program sets after it has made the loader."""
    code = """
    import multiprocessing

    def show(loader):
        print(told(loader), *parents(loader), *told(loader))

    options = {"places": "cpu", "batch_size": 2, "num_workers": 1}
    show(DataLoader(Parents(), **options))
    show(DataLoader(Parents(), **options, start_method="forkserver"))
    loader = DataLoader(Parents(), **options)
    multiprocessing.set_start_method("forkserver", force=True)
    show(loader)
    """
    method = default_method()
    assert run(code) == [
        f"[] {method == 'fork'} [] Workers start by '{method}': multiprocessing does so here.",
        "[] False [] Workers start by 'forkserver': start_method chose that.",
        "[] False [] Workers start by 'forkserver': multiprocessing does so here.",
    ]


@forking
def test_not_forked_once_jax_has_computed_unless_nothing_else_is_possible():
    pytest.importorskip("jax")
    code = """
    import jax, threading
    loader = DataLoader(Parents(), places="cpu", batch_size=2, num_workers=2)
    print(*parents(loader))
    jax.numpy.zeros(3) + 1
    print(*parents(loader))
    print(*told(loader))
    dataset = Parents()
    dataset.lock = threading.Lock()
    for _ in range(2):
        print(*parents(DataLoader(dataset, places="cpu", batch_size=2, num_workers=2)))
    """
    before, after, told, first, second = run(code)
    assert before == "True []"
    why = f"{SERVED} JAX has computed in this process, so that forked ones may hang."
    assert after == f'False ["{why}"]'
    assert told == why
    assert first.startswith(
        'True ["Workers are forked although JAX has computed in this process, so they may hang: pass '
    )
    assert second.startswith("True")
    assert "Workers" not in second  # said once; JAX says what it says about every fork


@forking
def test_a_dataset_of_polars_is_not_forked():
    pytest.importorskip("polars")
    code = """
    import polars as pl
    frame = pl.DataFrame({"x": [0, 1, 2, 3]}).select(pl.col("x") * 2)
    print(*parents(DataLoader(Parents(), places="cpu", batch_size=2, num_workers=2)))
    print(*parents(DataLoader(Framed(frame), places="cpu", batch_size=2, num_workers=2)))
    """
    without, framed = run(code)
    assert without == "True []"
    assert framed.startswith(f'False ["{SERVED} the dataset refers to Polars, so that forked ones may')
    assert "importing polars.dataframe.frame starts threads" in framed
