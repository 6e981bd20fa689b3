"""``gpuloader convert``: write a folder of images, a table or a Hugging Face dataset as shards."""

from __future__ import annotations

import argparse
from operator import length_hint
from pathlib import Path
from typing import Any

from gpuloader.cli import fail, parse_count, show_status

_KINDS = {
    ".csv": "CSVDataset",
    ".json": "JSONLDataset",
    ".ndjson": "JSONLDataset",
    ".parquet": "ParquetDataset",
    ".tar": "TarDataset",
    ".arrow": "ArrowDataset",
    ".feather": "ArrowDataset",
}
"""The datasets that read files, by a part of the file's name, which may end in ``.gz``."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    source = (
        "a folder of images, by class or not, a folder that Hugging Face saved, hf:NAME[:SPLIT], or a CSV, "
        "JSON Lines, Parquet, Arrow or tar file"
    )
    add = parser.add_argument
    add("source", help=source)
    add("folder", help="where the shards go, a local folder")
    add("--format", choices=("parquet", "tar"), default="parquet", help="of the shards")
    add("--rows", type=parse_count, metavar="N", help="samples per shard")
    add("--size", type=parse_count, default=64, metavar="MIB", help="of a shard; 64 by default")
    add("--workers", type=lambda text: parse_count(text, 0), default=0, metavar="N", help="worker processes")


def run(options: argparse.Namespace) -> None:
    """Write a dataset as Parquet or tar shards, which loaders read in parallel.

    After an interruption, the same command continues after the last complete shard.
    """
    from gpuloader.api.write_shards import write_shards
    from gpuloader.sources.files.remote_files import as_folder

    try:
        folder = as_folder(options.folder)  # before a dataset is downloaded
        dataset = open_source(options.source)
        total = f" of {count:,}" if (count := length_hint(dataset)) else ""
        paths = write_shards(
            dataset,
            folder,
            rows=options.rows,
            size=options.size << 20,
            format=options.format,
            num_workers=options.workers,
            progress=lambda count: show_status(f"{count:,}{total} samples written"),
        )
    except (ValueError, TypeError, OSError, ImportError) as error:
        show_status("")
        fail(error)
    show_status("")
    print(f"{len(paths)} {'shard' if len(paths) == 1 else 'shards'} in {folder}")


def open_source(source: str) -> Any:
    """Return the dataset that the command line names."""
    import gpuloader
    from gpuloader.cli.preview import open_folder

    folder = Path(source)
    is_saved = any((folder / name).exists() for name in ("state.json", "dataset_dict.json"))
    if source.startswith("hf:") or is_saved:
        datasets = gpuloader.errors.import_package("datasets", f"reading {source}", "")
        if is_saved:
            return datasets.load_from_disk(source)
        name, _, split = source.removeprefix("hf:").partition(":")
        return datasets.load_dataset(name, split=split or "train")
    if folder.is_dir():
        is_flat = not any(map(Path.is_dir, folder.iterdir()))
        return open_folder(folder)[0] if is_flat else gpuloader.ImageFolder(source)
    kind = next((kind for ending, kind in _KINDS.items() if ending in folder.name), None)
    if kind is None:
        fail(f"{source}: expected a folder of images, a file named {', '.join(_KINDS)}, or hf:NAME")
    return getattr(gpuloader, kind)(source)
