"""Which tests belong to which module: those that mirror it, and some more."""

from pathlib import Path

from tests.mutants.running import ROOT

MORE: dict[str, str] = {
    "collate/batches.py": "loader/test_generator_loader.py test_bad_input.py",
    "collate/blank.py": "collate/test_structure.py loader/test_forms.py",
    "collate/block_assembly.py": "collate/test_blocks.py",
    "collate/columns.py": "loader/test_forms.py loader/test_generator_loader.py",
    "collate/finish.py": "collate/test_assembly.py collate/test_items.py transforms/test_transforms.py",
    "collate/form.py": "loader/test_forms.py",
    "collate/gradual.py": "loader/test_options_and_memory.py loader/test_generator_loader.py",
    "collate/items.py": "collate/test_blocks.py loader/test_endings.py",
    "collate/known.py": "collate/test_assembly.py collate/test_form.py loader/test_forms.py",
    "collate/leaves.py": "collate/test_structure.py loader/test_forms.py",
    "collate/packing.py": "collate/test_blocks.py collate/test_items.py "
    "loader/test_state.py sources/test_tokens.py",
    "collate/reading.py": "collate/test_assembly.py loader/test_dataset_loader.py",
    "collate/rows.py": "collate/test_columns.py loader/test_generator_loader.py test_bad_input.py",
    "collate/samples.py": "loader/test_generator_loader.py test_bad_input.py",
    "collate/shares.py": "loader/test_rank_streams.py loader/test_uneven.py",
    "collate/stream.py": "loader/test_generator_loader.py loader/test_endings.py",
    "collate/structure.py": "loader/test_forms.py",
    "collate/targets.py": "collate/test_columns.py loader/test_generator_loader.py",
    "collate/whole.py": "loader/test_forms.py",
    "fetch/base.py": "fetch/test_threads.py",
    "fetch/failures.py": "fetch/test_threads.py fetch/test_timeouts.py fetch/processes/test_failures.py",
    "fetch/fetching.py": "fetch/test_threads.py fetch/test_read_ahead.py loader/test_options.py",
    "fetch/inline.py": "fetch/test_read_ahead.py loader/test_dataset_loader.py loader/test_endings.py",
    "fetch/relay.py": "fetch/test_read_ahead.py",
    "fetch/worker_options.py": "loader/test_options.py",
    "fetch/threads/crew.py": "fetch/test_threads.py fetch/test_timeouts.py fetch/test_leaving.py",
    "fetch/threads/workers.py": "fetch/test_threads.py",
    "order/agreement.py": "order/test_batch_sampler.py order/test_division.py loader/test_ranks.py",
    "order/batching.py": "order/test_plan.py loader/test_options.py "
    "loader/test_ranks.py loader/test_dealt_batches.py",
    "order/computed.py": "order/test_order.py order/test_permutation.py",
    "order/division.py": "loader/test_uneven.py",
    "order/fitting.py": "order/test_bucket_sampler.py sources/test_mix.py loader/test_options.py",
    "order/generators.py": "order/test_sampler.py order/test_bucket_sampler.py",
    "order/mixed.py": "sources/test_mix.py",
    "order/plan.py": "loader/test_dealt_batches.py",
    "order/repeated.py": "order/test_sampler.py order/test_order.py",
    "order/walking.py": "order/test_plan.py loader/test_endings.py",
    "pipeline/closing.py": "loader/test_iteration.py test_promises.py",
    "pipeline/copy_timing.py": "watch/test_stats.py watch/test_tracing.py",
    "pipeline/delivery.py": "pipeline/test_split.py pipeline/test_lane.py "
    "loader/test_options.py devices/test_cuda.py",
    "pipeline/device_slots.py": "pipeline/test_lane.py devices/test_cuda.py test_promises.py",
    "pipeline/epoch.py": "pipeline/test_closing.py loader/test_iteration.py watch/test_stats.py",
    "pipeline/lane.py": "devices/test_cuda.py test_promises.py",
    "pipeline/masks.py": "pipeline/test_split.py",
    "pipeline/steering.py": "watch/test_tuning.py",
    "pipeline/steps.py": "pipeline/test_lane.py pipeline/test_split.py test_promises.py",
    "pipeline/streams.py": "devices/test_cuda.py test_promises.py",
}
"""Further tests of modules: those that no test file mirrors, or that other tests are about, too.

Modules are named by their paths in gpuloader/, tests by theirs in tests/.
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
    mirror = Path("tests", inside).with_name(f"test_{inside.name}")
    more = [f"tests/{name}" for name in MORE.get(inside.as_posix(), "").split()]
    found = [mirror.as_posix()] if (ROOT / mirror).exists() else []
    if not found and not more:
        found = [Path("tests", inside.parent).as_posix()]
    return [module.as_posix(), *found, *more]
