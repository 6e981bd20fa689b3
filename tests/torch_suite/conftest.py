"""The cases of PyTorch's own loader tests, in our words; each runs on gpuloader.torch and on PyTorch.

The cases follow `test/test_dataloader.py` of PyTorch. PyTorch is the judge: a case that fails on it is wrong.
Where we differ on purpose, a case asserts both behaviors and names the difference in `differences.py`.
"""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["*.py"]
else:
    import torch

    from tests.torch_suite.libraries import LIBRARIES, THEIRS

    # The models here are tiny: threads of PyTorch would mostly wait for each other.
    torch.set_num_threads(1)

    @pytest.fixture(params=LIBRARIES)
    def lib(request):
        """Return a library."""
        return request.param

    @pytest.fixture(params=[False, True], ids=["new workers", "persistent workers"])
    def persistent(request):
        """Return the option that keeps workers, or starts new ones for every epoch."""
        return {"persistent_workers": request.param}

    def pytest_collection_modifyitems(items):
        """Ask the judge once, with workers that stay: each start of one copies the tables of all memory."""
        asked_again = {"lib": THEIRS.values[0], "persistent": False}
        parameters = [one.callspec.params if hasattr(one, "callspec") else {} for one in items]
        items[:] = [
            one for one, own in zip(items, parameters, strict=True) if not asked_again.items() <= own.items()
        ]
