"""Which tests belong to which module: those that mirror it, and some more."""

from pathlib import Path

from tests.mutants.running import ROOT

MORE: dict[str, str] = {
    "api/dataset_epochs.py": "api/epochs api/rank_warning api/changing_schemas api/dataset_loader "
    "torch/ranks api/attributes api/state api/ranks api/elastic api/endings api/warm_up",
    "api/generator_loader.py": "api/driving",
    "api/epochs.py": "api/state api/endings api/warm_up",
    "api/loader.py": "api/dataset_loader api/attributes torch/loader",
    "api/loading.py": "api/options api/pictures api/torch_options",
    "api/options.py": "api/torch_options",
    "api/prefetch.py": "api/prefetching",
    "batches/assembly.py": "sources/describing api/changing_schemas api/pictures api/options",
    "batches/columns.py": "api/changing_schemas api/generator_loader api/pictures transforms/image_staging "
    "sources/tables/table api/options fields/padding epoch/image_decoding",
    "batches/gathering.py": "epoch/cache transforms/batch_transforms api/options",
    "batches/image_samples.py": "api/pictures api/annotated_pictures transforms/image_staging "
    "epoch/image_decoding transforms/augmentation transforms/clips sources/images/video",
    "batches/items.py": "batches/columns api/endings api/pictures batches/assembly api/state api/order "
    "api/dataset_loader api/ranks",
    "batches/kept.py": "api/changing_schemas api/dataset_loader api/prefetching torch/prefetch torch/formats",
    "batches/readers.py": "api/generator_loader api/endings bad_input",
    "batches/rows.py": "batches/readers batches/items api/exact_values batches/columns "
    "api/generator_loader api/options_and_memory bad_input",
    "batches/schema.py": "batches/assembly batches/items transforms/batch_transforms api/prefetching "
    "api/changing_schemas api/options api/dataset_loader fields/padding",
    "batches/staged.py": "batches/readers api/pictures api/skipping epoch/image_decoding "
    "transforms/batch_transforms",
    "batches/tree.py": "api/changing_schemas batches/schema api/dataset_loader api/options",
    "devices/base.py": "devices/cuda devices/conformance",
    "devices/cuda.py": "devices/places doctor/trials",
    "devices/cuda_device.py": "devices/cuda devices/cuda_memory devices/cuda_captures "
    "devices/cuda_programs devices/cuda_prefetch devices/interop",
    "devices/host.py": "devices/conformance devices/interop",
    "devices/outputs.py": "devices/interop",
    "epoch/delivery.py": "epoch/lane epoch/device_slots api/numa api/options epoch/split devices/cuda_memory",
    "epoch/device_slots.py": "epoch/lane epoch/epoch devices/cuda_captures devices/cuda_memory promises",
    "epoch/epoch.py": "epoch/lane epoch/split "
    "kernels/on_streams api/epochs api/warm_up devices/cuda devices/cuda_captures promises watch/stats "
    "watch/autotuner",
    "epoch/lane.py": "watch/stats watch/tracing epoch/epoch devices/cuda devices/cuda_captures "
    "devices/cuda_memory devices/cuda_programs promises epoch/split",
    "epoch/sending.py": "epoch/cache api/feeder devices/cuda devices/cuda_captures "
    "devices/cuda_programs promises",
    "errors.py": "system/installing",
    "fetch/fetching.py": "fetch/threads fetch/read_ahead api/numa api/state api/late_ranks "
    "api/attributes api/options watch/autotuner",
    "fetch/contract.py": "fetch/threads fetch/timeouts fetch/processes/failures fetch/read_ahead "
    "api/dataset_loader api/endings",
    "fetch/jobs.py": "fetch/threads fetch/timeouts api/options",
    "fetch/processes/fork_server.py": "fetch/processes/deaths fetch/starting",
    "fetch/processes/messages.py": "fetch/processes/objects fetch/processes/failures",
    "fetch/processes/shipping.py": "fetch/processes/objects",
    "fetch/processes/worker.py": "fetch/processes/worker_life fetch/processes/objects "
    "fetch/processes/failures fetch/starting",
    "fetch/processes/workers.py": "fetch/processes/worker_life fetch/processes/objects "
    "fetch/processes/deaths fetch/starting",
    "fetch/read_ahead.py": "fetch/timeouts api/endings api/dataset_loader api/generator_loader",
    "fetch/worker_threads.py": "fetch/threads epoch/epoch api/ranks fetch/timeouts fetch/leaving "
    "watch/tracing transforms/image_staging",
    "demo/training.py": "demo/linear",
    "fluid/dataset.py": "fluid/slots",
    "foreign.py": "devices/interop devices/places order/samplers sources/dataset "
    "sources/frameworks torch/formats",
    "fields/ragged.py": "fields/padding",
    "fields/convert.py": "fields/spec api/exact_values",
    "fields/spec.py": "fields/declaring",
    "kernels": "kernels/conformance",
    "kernels/launching.py": "kernels/on_streams",
    "order/batching.py": "order/samplers order/dividing api/ranks order/plan "
    "api/options api/dealt_batches api/order api/elastic api/late_ranks "
    "order/bucket_sampler epoch/device_slots torch/ranks sources/mix torch/mixing order/golden_orders",
    "order/order.py": "order/permutation order/samplers",
    "order/randomness.py": "order/permutation order/order order/samplers order/bucket_sampler",
    "order/dividing.py": "order/order api/ranks api/elastic api/late_ranks order/golden_orders",
    "order/plan.py": "order/dividing api/ranks api/dealt_batches order/golden_orders",
    "order/samplers.py": "order/bucket_sampler order/plan api/endings",
    "order/worker_info.py": "api/ranks sources/files/shards",
    "sources/column_dataset.py": "sources/tables/table sources/files/arrays",
    "sources/dataset.py": "sources/array_rows",
    "sources/files": "sources/files/every_kind",
    "sources/files/arrow_files.py": "sources/files/table_options",
    "sources/files/remote_files.py": "sources/files/opening sources/files/file_cache",
    "sources/files/stored_samples.py": "api/write_shards",
    "sources/files/stored_arrays.py": "sources/files/arrays sources/array_rows",
    "sources/files/table_shards.py": "sources/files/table_options",
    "sources/images/decoding.py": "sources/images/turbojpeg api/pictures",
    "sources/images/image.py": "sources/images/resampling transforms/image_transforms "
    "transforms/image_staging sources/images/decoding sources/images/turbojpeg",
    "sources/images/regions.py": "batches/columns batches/schema epoch/image_decoding",
    "sources/images/resampling.py": "sources/images/resizing transforms/image_transforms kernels/recolor",
    "sources/images/resizing.py": "sources/images/resampling",
    "sources/readers": "sources/readers/decorators",
    "sources/readers/parallel.py": "sources/readers/processes sources/readers/threads",
    "sources/mnist/digits.py": "sources/mnist/idx sources/mnist/mnist sources/mnist/mnist_json",
    "sources/tokens.py": "sources/packed_sequences sources/array_rows",
    "staging.py": "staging/arena staging/ring",
    "system/driver.py": "packaging doctor/trials devices/cuda",
    "system/platforms.py": "system/whole_files",
    "system/processes.py": "system/interrupts system/interrupted_starts system/platforms fetch/starting "
    "fetch/leaving fetch/processes/deaths fetch/processes/fork_server",
    "system/threads.py": "system/interrupts fetch/exits",
    "transforms": "transforms/parameters",
    "transforms/batch_transforms.py": "transforms/mixing",
    "transforms/values.py": "transforms/batch_transforms",
    "transforms/program.py": "transforms/programmer kernels/on_streams devices/cuda_programs "
    "transforms/batch_transforms transforms/mixing",
    "watch/measured.py": "watch/stats watch/explaining",
    "watch/meter.py": "watch/tracing watch/stats",
}
"""Further tests of modules: those that no test file mirrors, or that other tests are about, too.

The names are paths in gpuloader/ and in tests/: ``api/options`` stands for tests/api/test_options.py. Those
of a folder belong to each module in it.
"""


def list_modules(given: str) -> list[Path]:
    """Return the modules that a path names, relative to the project: a file, FILE:LINE or a folder."""
    path = (ROOT / given.partition(":")[0]).resolve()
    if not path.is_relative_to(ROOT / "gpuloader") and not path.is_relative_to(ROOT / "kernels"):
        raise SystemExit(f"{given} is not in gpuloader/ or kernels/")
    if not path.exists():
        raise SystemExit(f"{given} does not exist")
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [file.relative_to(ROOT) for file in files if file.name != "__init__.py"]


def find_tests(module: Path) -> list[str]:
    """Return the tests of a module: its doctests, the file that mirrors it, and those in `MORE`.

    A module that has neither is tested by all files of its folder.

    >>> find_tests(Path("gpuloader/epoch/cache.py"))[:2]
    ['gpuloader/epoch/cache.py', 'tests/epoch/test_cache.py']
    """
    inside = module.relative_to("gpuloader") if module.parts[0] == "gpuloader" else module
    mirror = _name_test(inside.with_suffix(""))
    names = " ".join(MORE.get(path.as_posix(), "") for path in (inside, inside.parent))
    more = [_name_test(Path(name)) for name in names.split()]
    found = [mirror] if (ROOT / mirror).exists() else []
    if not found and not more:
        found = [Path("tests", inside.parent).as_posix()]
    return [module.as_posix(), *found, *more]


def _name_test(path: Path) -> str:
    return Path("tests", path.parent, f"test_{path.name}.py").as_posix()
