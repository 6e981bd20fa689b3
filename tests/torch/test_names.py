"""The module gpuloader.torch: its names, and that it never stands in PyTorch's way."""

import importlib.util
import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gpuloader
import gpuloader.torch as drop_in

PACKAGE = Path(gpuloader.__file__).parent
BASES = ["Dataset", "IterableDataset", "Sampler"]
SAMPLERS = ["BatchSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def run(code, *, cwd=None):
    """Run code in a fresh interpreter that finds the package by PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, *code] if isinstance(code, list) else [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_importing_it_imports_no_torch():
    code = "import gpuloader.torch, sys; print('torch' in sys.modules, sorted(gpuloader.torch.__all__)[0])"
    done = run(code)
    assert done.stdout == "False BatchSampler\n", done.stderr


def test_a_star_import_brings_the_names_and_nothing_else():
    names = {}
    exec("from gpuloader.torch import *", names)
    assert set(names) - {"__builtins__"} == set(drop_in.__all__)
    assert "torch" not in gpuloader.__all__  # `from gpuloader import *` must not replace PyTorch


def test_its_classes_are_those_of_the_package():
    assert issubclass(drop_in.DataLoader, gpuloader.DataLoader)
    for name in set(drop_in.__all__) & set(gpuloader.__all__) - {"random_split"}:
        ours, its = getattr(gpuloader, name), getattr(drop_in, name)
        if name == "get_worker_info":
            assert its is ours
        elif name not in BASES + SAMPLERS:
            assert issubclass(its, ours), name
            assert its is not ours, name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'gpuloader\.torch' has no attribute 'Nobody'"):
        drop_in.Nobody  # noqa: B018


@needs_torch
def test_every_name_of_torch_can_be_imported_and_most_are_pytorchs_own():
    import torch.utils.data as theirs

    assert set(drop_in.__all__) >= set(theirs.__all__)
    assert [name for name in drop_in.__all__ if not hasattr(drop_in, name)] == []
    for name in [*BASES, *SAMPLERS, "SequentialSampler", "DistributedSampler", "StackDataset"]:
        assert getattr(drop_in, name) is getattr(theirs, name)


@needs_torch
def test_submodules_have_pytorchs_names_and_ours_where_there_are_any():
    import gpuloader.torch._utils.collate as collate
    import torch.utils.data as theirs
    from torch.utils.data._utils.collate import default_collate_fn_map

    modules = {name for name, value in vars(theirs).items() if inspect.ismodule(value)}
    replaced = set()
    for module in modules:
        its = getattr(drop_in, module)
        assert importlib.import_module(f"gpuloader.torch.{module}") is its
        for name, value in vars(getattr(theirs, module)).items():
            if name in drop_in.__all__:
                assert getattr(its, name) is getattr(drop_in, name)
                replaced |= {name} if getattr(its, name) is not value else set()
            elif not inspect.ismodule(value) and not name.startswith("__"):
                assert getattr(its, name) is value, (module, name)
    kept = {"DataLoader", "TensorDataset", "Subset", "ConcatDataset", "ChainDataset", "random_split"}
    assert replaced == kept | {"get_worker_info"}
    assert collate.default_collate_fn_map is default_collate_fn_map
    assert drop_in._utils.collate.default_collate is theirs.default_collate
    assert not modules & set(drop_in.__all__)


def test_without_pytorch_base_classes_are_those_of_the_package():
    code = """
        import sys
        sys.modules["torch"] = None
        import numpy, gpuloader, gpuloader.torch as drop_in
        print(all(getattr(drop_in, name) is getattr(gpuloader, name) for name in %r))
        print(drop_in.TensorDataset(numpy.arange(3))[1], list(drop_in.SequentialSampler("ab")))
        print(hasattr(drop_in, "sampler"))
    """
    done = run(textwrap.dedent(code % BASES))
    assert done.stdout == "True\n(np.int64(1),) [0, 1]\nFalse\n", done.stderr


class TestInThePackagesFolder:
    """Python then looks for modules there first, and finds torch.py."""

    @needs_torch
    def test_pytorch_and_its_submodules_are_found_and_ours_are_imported_as_from_pytorch(self):
        code = """
            import gpuloader.torch as data
            import torch
            from gpuloader.torch import distributed
            from gpuloader.torch._utils.worker import get_worker_info
            from gpuloader.torch.dataloader import DataLoader, default_collate
            from gpuloader.torch.sampler import SubsetRandomSampler
            from torch.utils.data import DataLoader as Theirs
            print(torch.ones(2) * 2, Theirs.__module__)
            print(DataLoader is data.DataLoader, get_worker_info is data.get_worker_info)
            print(distributed.__name__)
            for wrong in ("from gpuloader.torch import Nobody", "import gpuloader.torch.nobody"):
                try:
                    exec(wrong)
                except ImportError as error:
                    print(error)
        """
        done = run(textwrap.dedent(code), cwd=PACKAGE)
        expected = [
            "tensor([2., 2.]) torch.utils.data.dataloader",
            "True True",
            "gpuloader.torch.distributed",
            f"cannot import name 'Nobody' from 'gpuloader.torch' ({PACKAGE / 'torch.py'})",
            "No module named 'gpuloader.torch.nobody'",
        ]
        assert done.stdout.splitlines() == expected, done.stderr

    def test_without_pytorch_it_is_missing_as_anywhere_else(self):
        code = """
            import sys
            sys.path[:] = [entry for entry in sys.path if "site-packages" not in entry]
            try:
                import torch
            except ModuleNotFoundError as error:
                print(error)
            print("torch" in sys.modules)
        """
        done = run(textwrap.dedent(code), cwd=PACKAGE)
        assert done.stdout == "No module named 'torch'\nFalse\n", done.stderr

    def test_the_command_line_starts(self):
        done = run(["-m", "gpuloader", "--version"], cwd=PACKAGE)
        assert done.stdout.startswith("gpuloader "), done.stderr
