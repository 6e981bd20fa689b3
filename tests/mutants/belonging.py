"""Which tests belong to which module: those that mirror it, and some more."""

from pathlib import Path

from tests.mutants.running import ROOT

MORE: dict[str, str] = {
    "collate/assembly.py": "sources/sample_fields loader/forms loader/pictures",
    "collate/batches.py": "loader/generator_loader bad_input",
    "collate/blank.py": "collate/structure loader/forms",
    "collate/block_assembly.py": "collate/blocks sources/tables/table",
    "collate/columns.py": "loader/forms loader/generator_loader",
    "collate/finish.py": "collate/assembly collate/items transforms/transforms loader/prefetching",
    "collate/form.py": "loader/forms",
    "collate/gaps.py": "loader/pictures",
    "collate/gather.py": "pipeline/cache transforms/transforms",
    "collate/gradual.py": "collate/samples loader/options_and_memory loader/generator_loader",
    "collate/items.py": "collate/blocks loader/endings loader/pictures",
    "collate/known.py": "collate/form loader/forms",
    "collate/leaves.py": "collate/structure loader/forms",
    "collate/leaving.py": "pipeline/decoding",
    "collate/look.py": "loader/prefetching torch/prefetch",
    "collate/nested.py": "loader/prefetching torch/prefetch torch/formats",
    "collate/packing.py": "collate/samples collate/items loader/exact_values",
    "collate/pictures.py": "loader/pictures transforms/staging pipeline/decoding",
    "collate/reading.py": "collate/assembly loader/dataset_loader",
    "collate/rows.py": "collate/columns collate/samples loader/generator_loader loader/exact_values "
    "bad_input",
    "collate/samples.py": "loader/generator_loader bad_input",
    "collate/shares.py": "loader/rank_streams loader/rank_batches loader/uneven",
    "collate/stream.py": "loader/generator_loader loader/endings",
    "collate/structure.py": "collate/form loader/forms",
    "collate/targets.py": "collate/columns collate/samples loader/generator_loader",
    "collate/varying.py": "transforms/staging loader/forms",
    "collate/whole.py": "loader/forms",
    "fetch/base.py": "fetch/threads",
    "fetch/failures.py": "fetch/threads fetch/timeouts fetch/processes/failures",
    "fetch/fetching.py": "fetch/threads fetch/read_ahead loader/numa loader/state loader/late_ranks "
    "loader/attributes loader/options",
    "fetch/inline.py": "fetch/read_ahead loader/dataset_loader loader/endings",
    "fetch/relay.py": "fetch/read_ahead",
    "fetch/worker_options.py": "loader/options watch/tuning",
    "fetch/processes/child.py": "fetch/processes/fork_server fetch/processes/deaths",
    "fetch/processes/control.py": "fetch/processes/fork_server",
    "fetch/processes/failures.py": "fetch/processes/deaths",
    "fetch/processes/pickling.py": "fetch/processes/shipping",
    "fetch/processes/pool.py": "fetch/processes/worker_life fetch/processes/objects fetch/starting "
    "fetch/processes/deaths",
    "fetch/processes/process.py": "fetch/processes/worker_life fetch/processes/objects "
    "fetch/processes/deaths",
    "fetch/processes/reporting.py": "fetch/processes/failures",
    "fetch/processes/serving.py": "fetch/processes/fork_server",
    "fetch/processes/setup.py": "fetch/processes/worker_life",
    "fetch/processes/shipping.py": "fetch/processes/objects",
    "fetch/processes/starting.py": "fetch/starting fetch/processes/fork_server",
    "fetch/processes/surroundings.py": "fetch/starting fetch/processes/worker_life",
    "fetch/processes/wire.py": "fetch/processes/objects",
    "fetch/processes/worker.py": "fetch/processes/worker_life fetch/processes/objects "
    "fetch/processes/failures",
    "fetch/processes/workers.py": "fetch/processes/worker_life fetch/processes/objects "
    "fetch/processes/deaths",
    "fetch/threads/crew.py": "fetch/threads pipeline/closing loader/rank_streams fetch/timeouts "
    "fetch/leaving",
    "fetch/threads/workers.py": "fetch/threads watch/tracing transforms/staging",
    "kernels/cast.py": "kernels/conformance",
    "kernels/crop.py": "kernels/conformance",
    "kernels/gather.py": "kernels/conformance",
    "kernels/launching.py": "kernels/conformance kernels/on_streams",
    "kernels/mix.py": "kernels/conformance",
    "kernels/normalize.py": "kernels/conformance",
    "kernels/one_hot.py": "kernels/conformance",
    "kernels/pad.py": "kernels/conformance",
    "kernels/recolor.py": "kernels/conformance",
    "kernels/resample.py": "kernels/conformance",
    "kernels/shuffle.py": "kernels/conformance",
    "order/agreement.py": "order/batch_sampler order/division loader/ranks",
    "order/batching.py": "order/plan loader/options loader/ranks loader/dealt_batches loader/order "
    "loader/elastic loader/late_ranks order/bucket_sampler pipeline/static torch/ranks",
    "order/computed.py": "order/order order/permutation",
    "order/division.py": "loader/uneven loader/ranks",
    "order/fitting.py": "order/bucket_sampler sources/mix loader/options torch/mixing",
    "order/generators.py": "order/sampler order/bucket_sampler",
    "order/mixed.py": "sources/mix",
    "order/order.py": "order/sampler",
    "order/permutation.py": "order/order",
    "order/plan.py": "loader/dealt_batches",
    "order/repeated.py": "order/sampler order/order",
    "order/torch_samplers.py": "torch/classes torch/loader",
    "order/walking.py": "order/plan loader/endings",
    "order/worker_info.py": "loader/rank_streams sources/files/shards",
    "pipeline/closing.py": "pipeline/epoch loader/iteration devices/cuda promises",
    "pipeline/copy_timing.py": "watch/stats watch/tracing",
    "pipeline/delivery.py": "pipeline/lane pipeline/static loader/numa loader/options pipeline/split "
    "devices/cuda",
    "pipeline/device_slots.py": "pipeline/lane pipeline/steps pipeline/static devices/cuda promises",
    "pipeline/epoch.py": "pipeline/closing loader/iteration loader/warm_up watch/stats devices/cuda",
    "pipeline/kernels_ahead.py": "kernels/on_streams",
    "pipeline/lane.py": "pipeline/steps devices/cuda devices/cuda_programs promises",
    "pipeline/masks.py": "pipeline/split",
    "pipeline/sending.py": "pipeline/cache loader/feeder devices/cuda devices/cuda_programs",
    "pipeline/static_slot.py": "pipeline/static devices/cuda",
    "pipeline/steering.py": "watch/tuning",
    "pipeline/steps.py": "pipeline/lane pipeline/split promises",
    "pipeline/streams.py": "devices/cuda promises",
    "sources/pictures/decoding.py": "sources/pictures/turbojpeg loader/pictures",
    "sources/pictures/geometry.py": "sources/pictures/resampling transforms/resizing transforms/staging",
    "sources/pictures/picture.py": "sources/pictures/decoding sources/pictures/turbojpeg",
    "sources/pictures/resizing.py": "sources/pictures/resampling",
    "transforms/bound.py": "kernels/on_streams devices/cuda_programs",
    "transforms/erasing.py": "transforms/mixing",
    "transforms/layouts.py": "transforms/mixing",
    "transforms/operations.py": "transforms/program transforms/transforms",
    "transforms/programmer.py": "transforms/program transforms/transforms transforms/mixing",
}
"""Further tests of modules: those that no test file mirrors, or that other tests are about, too.

The names are paths in gpuloader/ and in tests/: ``loader/forms`` stands for tests/loader/test_forms.py.
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

    A module that has neither is tested by all files of its room.

    >>> find_tests(Path("gpuloader/staging/ring.py"))[:2]
    ['gpuloader/staging/ring.py', 'tests/staging/test_ring.py']
    """
    inside = module.relative_to("gpuloader") if module.parts[0] == "gpuloader" else module
    mirror = _name_test(inside.with_suffix(""))
    more = [_name_test(Path(name)) for name in MORE.get(inside.as_posix(), "").split()]
    found = [mirror] if (ROOT / mirror).exists() else []
    if not found and not more:
        found = [Path("tests", inside.parent).as_posix()]
    return [module.as_posix(), *found, *more]


def _name_test(path: Path) -> str:
    return Path("tests", path.parent, f"test_{path.name}.py").as_posix()
