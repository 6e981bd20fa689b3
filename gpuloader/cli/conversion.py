"""``gpuloader convert``: write a folder of images, a table or a Hugging Face dataset as shards."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpuloader.cli import fail, parse_count, show_status


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    source = (
        "a folder of images, by class or not, a folder that Hugging Face saved, hf:NAME[:SPLIT], or a CSV, "
    )
    source += "JSON Lines, Parquet, Arrow or tar file"
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
    from gpuloader.cli.preview import Annotated
    from gpuloader.sources.images.folder import EXTENSIONS

    folder = Path(source)
    is_saved = any((folder / name).exists() for name in ("state.json", "dataset_dict.json"))
    if source.startswith("hf:") or is_saved:
        datasets = gpuloader.errors.import_package("datasets", f"reading {source}", "")
        if is_saved:
            return datasets.load_from_disk(source)
        name, _, split = source.removeprefix("hf:").partition(":")
        return datasets.load_dataset(name, split=split or "train")
    if folder.is_dir():
        found = sorted(folder.iterdir())
        images = [path for path in found if path.suffix.lower() in EXTENSIONS]
        is_flat = images and not any(map(Path.is_dir, found))
        return Annotated(folder, images, {}, None) if is_flat else gpuloader.ImageFolder(source)
    kinds: dict[str, Any] = {".csv": gpuloader.CSVDataset, ".json": gpuloader.JSONLDataset}
    kinds |= {".ndjson": gpuloader.JSONLDataset, ".parquet": gpuloader.ParquetDataset}
    kinds |= {
        ".tar": gpuloader.TarDataset,
        ".arrow": gpuloader.ArrowDataset,
        ".feather": gpuloader.ArrowDataset,
    }
    kind = next((kind for ending, kind in kinds.items() if ending in folder.name), None)
    if kind is None:
        fail(f"{source}: expected a folder of images, a file named {', '.join(kinds)}, or hf:NAME")
    return kind(source)
