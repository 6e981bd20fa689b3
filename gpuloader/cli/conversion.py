"""``gpuloader convert``: write a folder of images, a table or a Hugging Face dataset as shards."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpuloader.cli import fail, parse_count, show_status


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    source = "a folder of images by class, a CSV, JSON Lines, Parquet or tar file, or hf:NAME[:SPLIT]"
    add = parser.add_argument
    add("source", help=source)
    add("folder", help="where the shards go, a local folder")
    add("--format", choices=("parquet", "tar"), default="parquet", help="of the shards")
    add("--rows", type=parse_count, metavar="N", help="samples per shard")
    add("--size", type=parse_count, default=64, metavar="MIB", help="of a shard; 64 by default")
    add("--workers", type=lambda text: parse_count(text, 0), default=0, metavar="N", help="worker processes")


def run(options: argparse.Namespace) -> int:
    """Write a dataset as Parquet or tar shards, which loaders read in parallel.

    After an interruption, the same command continues after the last complete shard.
    """
    from gpuloader.api.write_shards import write_shards
    from gpuloader.sources.files.remote_files import as_folder

    try:
        folder = as_folder(options.folder)  # before a dataset is downloaded
        paths = write_shards(
            open_source(options.source),
            folder,
            rows=options.rows,
            size=options.size << 20,
            format=options.format,
            num_workers=options.workers,
            progress=lambda count: show_status(f"{count:,} samples written"),
        )
    except (ValueError, TypeError, OSError, ImportError) as error:
        show_status("")
        fail(error)
    show_status("")
    print(f"{len(paths)} {'shard' if len(paths) == 1 else 'shards'} in {folder}")
    return 0


def open_source(source: str) -> Any:
    """Return the dataset that the command line names."""
    import gpuloader

    if source.startswith("hf:"):
        datasets = gpuloader.errors.import_package("datasets", f"reading {source}", "")
        name, _, split = source.removeprefix("hf:").partition(":")
        return datasets.load_dataset(name, split=split or "train")
    if Path(source).is_dir():
        return gpuloader.ImageFolder(source)
    kinds = {
        ".csv": gpuloader.CSVDataset,
        ".json": gpuloader.JSONLDataset,
        ".parquet": gpuloader.ParquetDataset,
        ".tar": gpuloader.TarDataset,
    }
    kind = next((kind for ending, kind in kinds.items() if ending in Path(source).name), None)
    if kind is None:
        fail(f"{source}: expected a folder of images, a file named {', '.join(kinds)}, or hf:NAME")
    return kind(source)
