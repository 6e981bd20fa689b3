"""How names of the package are found: on first use, and where earlier versions or PyTorch have them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

# Names that are imported on first use.


def import_on_demand(package: str, file: str) -> tuple[dict[str, str], Callable[[str], Any]]:
    """Return the module of each name of a package, and a ``__getattr__`` that imports the name from there.

    They are read from the stub next to the package's `file`, so each name is written down only once, where
    type checkers and editors look for it. Names that live in the package itself are its modules.

    >>> import gpuloader
    >>> homes, find = import_on_demand("gpuloader", gpuloader.__file__)
    >>> homes["TarDataset"], find("TarDataset") is gpuloader.TarDataset
    ('gpuloader.sources.files.tar', True)
    """
    # Not with `pathlib`, here and in other modules that every program imports: with all that it imports, that
    # takes as long as ten of our modules.
    homes: dict[str, str] = {}
    with open(file.removesuffix("py") + "pyi", encoding="utf-8") as stub:  # noqa: PTH123
        for words in map(str.split, stub):
            if words[:1] == ["from"]:  # from HOME import NAME as NAME
                homes[words[3]] = words[1]

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, collects = homes[name], gc.isenabled()
        # So many new objects set off a full collection, which takes 90 ms if PyTorch's are there already.
        gc.disable()
        try:
            found = import_module(f"{package}.{name}" if home == package else home)
        finally:
            if collects:
                gc.enable()
        found = found if home == package else getattr(found, name)
        setattr(sys.modules[package], name, found)
        return found

    return homes, __getattr__


def step_aside(name: str, file: str) -> None:
    """Let ``import name`` find the package that our module with the path `file` hides."""
    # Python was started in our folder, and looks for modules there first.
    here = os.path.dirname(os.path.realpath(file))  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != here]
    del sys.modules[name]
    import_module(name)


# Where the modules of earlier versions are now, so that their pickles can be loaded.

# A pickle names the module of each class in it. Only modules whose objects users pickle are listed: errors,
# datasets, samplers, places, fields, transforms and loaders. Each maps to its old names, separated by spaces.
_OLD_NAMES = {
    "api.generator_loader": "loader.generator_loader",
    "api.keras_loader": "loader.keras_loader",
    "api.loader": "api.upcoming loader.dataset_loader loader.resuming",
    "api.prefetch": "loader.prefetching",
    "api.prepared_loader": "loader.prepared_loader",
    "api.torch_loader": "loader.torch_loader",
    "errors": "base.errors",
    "fields.ragged": "fields.padding",
    "fields.spec": "fields.declaring",
    "order.batching": "order.agreement",
    "order.dividing": "order.division",
    "order.order": "order.computed order.repeated order.stretch",
    "order.samplers": "order.batch_sampler order.bucket_sampler order.mixed order.sampler",
    "sources.block": "sources.sample_fields",
    "sources.dataset": "sources.dataset_base sources.dataset_subset sources.dataset_tensors",
    "sources.describing": "sources.tables.adapting",
    "sources.files.remote_files": "sources.files.opening",
    "sources.files.stored_arrays": "sources.files.arrays sources.files.hdf5_arrays sources.files.zarr_arrays",
    "sources.images.folder": "sources.pictures.folder",
    "sources.images.image": "sources.pictures.geometry sources.pictures.picture",
    "sources.tables.huggingface": "sources.tables.huggingface_streams",
    "sources.tables.table": "sources.tables.columns",
    "sources.tokens": "sources.packed_sequences",
    "sources.torch_classes": "order.torch_samplers sources.torch_datasets",
    "transforms.batch_transforms": "transforms.erasing transforms.pictures",
    "transforms.image_transforms": "transforms.coloring transforms.resizing",
    "watch.meter": "watch.tracing",
}
_MOVED = {old: new for new, names in _OLD_NAMES.items() for old in names.split()}
_PACKAGES = {"base", "loader", "sources.pictures"}
_ROOT = __name__.partition(".")[0] + "."
_TORCH, _THEIRS = _ROOT + "torch.", "torch.utils.data."


class _Finder:
    """Finds a module under its old name, or PyTorch's under ours, after all other finders have failed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        """Return how to import `name` if it is an old name, or a submodule of `gpuloader.torch`."""
        if name.startswith(_TORCH):
            from importlib.util import find_spec  # imported late: every program imports this module

            found = find_spec(name.replace(_TORCH, _THEIRS))
            return found and ModuleSpec(name, cast("Loader", _Finder), is_package=True)
        old = name.removeprefix(_ROOT)
        if old == name or not (old in _MOVED or old in _PACKAGES):
            return None
        # An old package has no files. With the path of the new one, Python would import a module that kept
        # its file name a second time, with classes different from the first import's.
        return ModuleSpec(name, cast("Loader", _Finder), is_package=old in _PACKAGES)

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Return None, which makes Python create a module."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Replace the new, empty module by the one that has the code now, or fill it with PyTorch's names."""
        if module.__name__.startswith(_TORCH):
            # A module of its own, because PyTorch's would have PyTorch's DataLoader.
            ours = import_module(_TORCH.removesuffix("."))
            for name, value in vars(import_module(module.__name__.replace(_TORCH, _THEIRS))).items():
                vars(module).setdefault(name, getattr(ours, name) if name in ours.__all__ else value)
            return
        new = _MOVED.get(module.__name__.removeprefix(_ROOT))
        if new is not None:
            sys.modules[module.__name__] = import_module(_ROOT + new)


def find_moved_modules() -> None:
    """Let old names, and submodules of `gpuloader.torch`, be imported from now on."""
    sys.meta_path.append(_Finder)
