"""Tests of numbers that are looked at while another thread imports NumPy's masked arrays."""

from tests.fetch.faulty import run_program

PROGRAM = """
import importlib.machinery, sys, threading
from gpuloader.fields.convert import as_numbers

begun, may_go_on = threading.Event(), threading.Event()

class Slow(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        begun.set()
        may_go_on.wait()
        super().exec_module(module)

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "numpy.ma":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            spec.loader = Slow(name, spec.origin)
            return spec

sys.meta_path.insert(0, Finder)
threading.Thread(target=__import__, args=("numpy.ma",)).start()
begun.wait()
threading.Timer(0.1, may_go_on.set).start()
print(as_numbers([1, 2]).tolist())
"""


def test_numbers_wait_for_an_import_in_another_thread():
    done = run_program(PROGRAM)
    assert done.stdout == "[1, 2]\n", done.stderr
