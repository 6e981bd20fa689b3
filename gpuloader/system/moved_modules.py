"""Where the modules of version 0.1 are now, so that what it pickled can be loaded."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

# A pickle names the module of each class in it. Only modules whose objects users pickle are listed: errors,
# datasets, samplers, places, fields, transforms and loaders.
_MOVED = {
    "base.errors": "errors",
    "fields.declaring": "fields.spec",
    "loader.dataset_loader": "api.loader",
    "loader.generator_loader": "api.generator_loader",
    "loader.keras_loader": "api.keras_loader",
    "loader.prefetching": "api.prefetch",
    "loader.prepared_loader": "api.prepared_loader",
    "loader.resuming": "api.epochs",
    "loader.torch_loader": "api.torch_loader",
    "order.agreement": "order.batching",
    "order.batch_sampler": "order.samplers",
    "order.bucket_sampler": "order.samplers",
    "order.computed": "order.order",
    "order.division": "order.dividing",
    "order.mixed": "order.samplers",
    "order.repeated": "order.order",
    "order.sampler": "order.samplers",
    "order.stretch": "order.order",
    "order.torch_samplers": "sources.torch_classes",
    "sources.dataset_base": "sources.dataset",
    "sources.dataset_subset": "sources.dataset",
    "sources.dataset_tensors": "sources.dataset",
    "sources.files.arrays": "sources.files.stored_arrays",
    "sources.files.hdf5_arrays": "sources.files.stored_arrays",
    "sources.files.opening": "sources.files.remote_files",
    "sources.files.zarr_arrays": "sources.files.stored_arrays",
    "sources.pictures.folder": "sources.images.folder",
    "sources.pictures.geometry": "sources.images.image",
    "sources.pictures.picture": "sources.images.image",
    "sources.sample_fields": "sources.block",
    "sources.mix": "sources.dataset",
    "sources.tables.adapting": "sources.describing",
    "sources.torch_datasets": "sources.torch_classes",
    "sources.tables.columns": "sources.tables.table",
    "sources.tables.huggingface_streams": "sources.tables.huggingface",
    "transforms.coloring": "transforms.image_transforms",
    "transforms.erasing": "transforms.batch_transforms",
    "transforms.mixing": "transforms.batch_transforms",
    "transforms.pictures": "transforms.batch_transforms",
    "transforms.resizing": "transforms.image_transforms",
    "transforms.values": "transforms.batch_transforms",
}
_PACKAGES = {"base", "loader", "sources.pictures"}
_ROOT = __name__.partition(".")[0] + "."


class _Finder:
    """Finds a module under its old name, after all other finders have failed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        """Return how to import `name` if it is an old name."""
        old = name.removeprefix(_ROOT)
        if old == name or not (old in _MOVED or old in _PACKAGES):
            return None
        # An old package has no files: with the path of the new one, Python would import a module that kept
        # its file name a second time, with classes that are different from those of the first.
        return ModuleSpec(name, cast("Loader", _Loader), is_package=old in _PACKAGES)


class _Loader:
    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Return None, which makes Python create a module."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Put the module that has the code now in the place of the new, empty one."""
        new = _MOVED.get(module.__name__.removeprefix(_ROOT))
        if new is not None:
            sys.modules[module.__name__] = importlib.import_module(_ROOT + new)


def find_moved_modules() -> None:
    """Let old names be imported from now on."""
    sys.meta_path.append(_Finder)
