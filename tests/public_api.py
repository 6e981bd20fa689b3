"""The package's public API as plain text, one line for each thing that users may call or read.

After an intended change, ``python -m tests.public_api > tests/public_api.txt`` updates the file.
"""

import importlib
import inspect
import types
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".txt")

MODULES = (
    "gpuloader",
    "gpuloader.io",
    "gpuloader.torch",
    "gpuloader.keras",
    "gpuloader.accelerate",
    "gpuloader.reader",
    "gpuloader.transforms",
    "gpuloader.vision.transforms",
    "gpuloader.prometheus",
    "gpuloader.testing",
    "gpuloader.sources.mnist",
    "gpuloader.fluid",
    "gpuloader.fluid.core",
    "gpuloader.fluid.data_feeder",
    "gpuloader.fluid.dataset",
    "gpuloader.fluid.dygraph",
    "gpuloader.fluid.io",
    "gpuloader.fluid.layers",
    "gpuloader.fluid.lod_tensor",
    "gpuloader.fluid.reader",
    "gpuloader.fluid.unique_name",
    "gpuloader.dataset",
    "gpuloader.dataset.mnist",
)
"""The modules that users import from. The names in their ``__all__`` and the names' members are public."""

RETURNED = ("gpuloader.api.generator_loader.GeneratorLoader", "gpuloader.api.prefetch.PrefetchedLoader")
"""Classes whose objects users receive but which they never name."""


def find(path):
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        parent, _, name = path.rpartition(".")
        return getattr(find(parent), name)


def describe_api():
    """Return the lines, sorted within each module; a repeated object refers to its first name."""
    lines, home = [], {}
    for module in MODULES:
        own = []
        for name in find(module).__all__:
            path, thing = f"{module}.{name}", getattr(find(module), name)
            if isinstance(thing, types.ModuleType):
                own.append(f"{path}: module")
            elif home.setdefault(thing, path) != path:
                own.append(f"{path} = {home[thing]}")
            else:
                own += describe(path, thing)
        lines += sorted(own)
    for path in RETURNED:
        lines += sorted(describe(path, find(path)))
    return lines


def describe(path, thing):
    """Yield the lines for a function, or for a class and its members."""
    if not inspect.isclass(thing):
        yield f"{path}{parameters(thing)}"
        return
    classes = [one for one in thing.__mro__ if one.__module__.partition(".")[0] == "gpuloader"]
    made_here = any("__init__" in vars(one) or "__new__" in vars(one) for one in classes)
    yield f"{path}{parameters(thing)}" if made_here else path
    members = {name: member for one in reversed(classes) for name, member in vars(one).items()}
    for name in {name for one in classes for name in getattr(one, "__annotations__", ())} - members.keys():
        members[name] = None
    for name, member in members.items():
        if name.startswith("_"):
            continue
        if inspect.isclass(member):
            yield from describe(f"{path}.{name}", member)
        elif not callable(getattr(thing, name, None)):
            yield f"{path}.{name}: attribute"
        else:
            yield f"{path}.{name}{parameters(getattr(thing, name), bound=inspect.isfunction(member))}"


def parameters(function, *, bound=False):
    """Return the names, kinds and defaults of a callable's parameters, without a method's ``self``."""
    signature = inspect.signature(function)
    found = list(signature.parameters.values())[1 if bound else 0 :]
    plain = [one.replace(annotation=inspect.Parameter.empty, default=shown(one.default)) for one in found]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


class Shown:
    """A default whose `repr` is the same for all versions of NumPy and Python."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def shown(default):
    """Return a default in the form in which to write it."""
    if default is inspect.Parameter.empty:
        return default
    if isinstance(default, np.generic):
        default = default.item()
    return Shown(getattr(default, "__qualname__", None) or repr(default))


if __name__ == "__main__":
    print(*describe_api(), sep="\n")
