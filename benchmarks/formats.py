"""Files beside the libraries that read them: CPU and wall time of an epoch, workers included.

``python -m benchmarks.formats [--case NAME...] [--rounds 5] [--output FILE]`` writes the data into a
temporary folder, and prints the rows of a table at the end. Each figure is the median of five epochs, each in
a fresh process that has imported its library; all candidates of a case take turns. Every candidate makes
NumPy arrays or Python strings in batches of 256 and reads the first value of each. Libraries that are not
installed are left out.

The peers do what a careful user would write. pyarrow's copies each column of a record batch. Polars' decodes
the whole file before the first batch, slices the frame, and copies each column of a slice. h5py's opens its
array once.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.measure import describe_machine, write_report

BATCH = 256
ORDERED = "in order"  # our own candidate for all samples in order, beside which another one is measured

# The data: one file or store for each case.


def write(folder: Path) -> None:
    """Write the data of all cases whose libraries are installed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    rows = 400_000
    columns = {f"x{number}": random.random(rows, np.float32) for number in range(20)}
    pq.write_table(pa.table(columns), folder / "columns.parquet", row_group_size=50_000)
    few = {name: column[:40_000] for name, column in columns.items()}
    pq.write_table(pa.table(few), folder / "stream.parquet", row_group_size=10_000)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(random.random(200_000 * 128, np.float32)), 128)
    pq.write_table(pa.table({"x": vectors}), folder / "vectors.parquet", row_group_size=20_000)
    ends = np.concatenate([[0], np.cumsum(random.integers(1, 41, rows))]).astype(np.int32)
    lists = pa.ListArray.from_arrays(ends, random.integers(0, 30_000, ends[-1], np.int32))
    pq.write_table(pa.table({"x": lists}), folder / "lists.parquet", row_group_size=50_000)
    words = [f"the text of row {row}, and a few words more" for row in range(rows)]
    pq.write_table(pa.table({"x": words}), folder / "strings.parquet", row_group_size=50_000)
    with (folder / "rows.csv").open("w") as csv, (folder / "rows.jsonl").open("w") as lines:
        csv.write("x,n,t\n")
        for row in range(rows):
            csv.write(f"{row / 8},{row},text of row {row}\n")
            lines.write(f'{{"x": {row / 8}, "n": {row}, "t": "text of row {row}"}}\n')
    pixels = random.integers(0, 256, (60_000, 32, 32, 3), np.uint8)
    if importlib.util.find_spec("zarr"):
        import zarr

        zarr.create_array(folder / "pixels.zarr", data=pixels, chunks=(BATCH, 32, 32, 3))
    if importlib.util.find_spec("h5py"):
        import h5py

        # Four times as many as for Zarr: HDF5 reads the others in 20 ms, of which the start would be a fifth.
        with h5py.File(folder / "pixels.h5", "w") as file:
            many = np.concatenate([pixels] * 4)
            file.create_dataset("x", data=many, chunks=(BATCH, 32, 32, 3))
            file.create_dataset("gzip", data=pixels // 16, chunks=(BATCH, 32, 32, 3), compression="gzip")
            file.create_dataset("small", data=np.arange(4_000_000), chunks=(4096,))
    if importlib.util.find_spec("PIL"):
        from PIL import Image

        for shard in range(4):
            with tarfile.open(folder / f"{shard}.tar", "w") as opened:
                for number in range(500):
                    encoded = io.BytesIO()
                    small = Image.fromarray(pixels[500 * shard + number])
                    small.resize((160, 160)).save(encoded, "JPEG")
                    member = tarfile.TarInfo(f"{number:04d}.jpg")
                    member.size = encoded.tell()
                    encoded.seek(0)
                    opened.addfile(member, encoded)


# What other libraries do with it.


def arrow(path: Path) -> Iterator[Any]:
    """Yield record batches of `pyarrow.dataset`."""
    from pyarrow import dataset

    kind = {".csv": "csv", ".jsonl": "json"}.get(path.suffix, "parquet")
    return dataset.dataset(path, format=kind).to_batches(batch_size=BATCH)


def arrow_columns(folder: Path) -> Iterable[Any]:
    """Yield a copy of each column of a batch."""
    for batch in arrow(folder / "columns.parquet"):
        yield [column.to_numpy().copy() for column in batch.columns]


def polars_columns(folder: Path) -> Iterable[Any]:
    """Yield a copy of each column of a batch."""
    import polars as pl

    for frame in pl.scan_parquet(folder / "columns.parquet").collect().iter_slices(BATCH):
        yield [column.to_numpy().copy() for column in frame]


def arrow_vectors(folder: Path) -> Iterable[Any]:
    """Yield a copy of the vectors of a batch."""
    for batch in arrow(folder / "vectors.parquet"):
        yield [batch.column(0).flatten().to_numpy().reshape(-1, 128).copy()]


def arrow_lists(folder: Path) -> Iterable[Any]:
    """Yield the lists of a batch, padded."""
    for batch in arrow(folder / "lists.parquet"):
        values, offsets = batch.column(0).flatten().to_numpy(), batch.column(0).offsets.to_numpy()
        lengths = np.diff(offsets)
        mask = np.arange(lengths.max()) < lengths[:, None]
        padded = np.zeros(mask.shape, np.int32)
        padded[mask] = values
        yield [padded]


def arrow_strings(folder: Path) -> Iterable[Any]:
    """Yield the strings of a batch."""
    for batch in arrow(folder / "strings.parquet"):
        yield [batch.column(0).to_pylist()]


def arrow_text(folder: Path, name: str) -> Iterable[Any]:
    """Yield copies of two columns of numbers of a batch, and one of strings."""
    for batch in arrow(folder / name):
        yield [*(batch[column].to_numpy().copy() for column in ("x", "n")), batch["t"].to_pylist()]


def zarr_order(folder: Path) -> Iterable[Any]:
    """Yield slices, each a whole chunk."""
    import zarr

    array: Any = zarr.open(folder / "pixels.zarr", mode="r")
    for start in range(0, array.shape[0], BATCH):
        yield [array[start : start + BATCH]]


def zarr_subset(folder: Path) -> Iterable[Any]:
    """Yield the rows of a random subset, which zarr sorts by chunk."""
    import zarr

    array: Any = zarr.open(folder / "pixels.zarr", mode="r")
    for rows in subset():
        yield [array.oindex[rows]]


def hdf5_order(folder: Path, name: str = "x") -> Iterable[Any]:
    """Yield slices."""
    import h5py

    with h5py.File(folder / "pixels.h5", "r") as file:
        array = file[name]
        for start in range(0, len(array), BATCH):
            yield [array[start : start + BATCH]]


def webdataset_pictures(folder: Path, workers: int = 0) -> Iterable[Any]:
    """Yield batches that webdataset decodes with Pillow."""
    import webdataset

    urls = f"{folder}/{{0..3}}.tar"
    stream = webdataset.WebDataset(urls, shardshuffle=False).decode("rgb8").to_tuple("jpg")
    if not workers:
        for (images,) in stream.batched(BATCH):
            yield [images]
        return
    from torch.utils.data import DataLoader

    yield from DataLoader(stream, batch_size=BATCH, num_workers=workers)


def torch_stream(folder: Path, workers: int = 0) -> Iterable[Any]:
    """Yield torch's batches of a Hugging Face stream."""
    from torch.utils.data import DataLoader

    for batch in DataLoader(stream(folder), batch_size=BATCH, num_workers=workers):
        yield list(batch.values())


# What gpuloader does.


def parquet(name: str, **options: Any) -> Callable[[Path, int], Iterable[Any]]:
    """Return a candidate over a Parquet file."""

    def load(folder: Path, workers: int = 0) -> Iterable[Any]:
        from gpuloader import DataLoader, ParquetDataset

        dataset = ParquetDataset(folder / f"{name}.parquet")
        loader = DataLoader(dataset, places="cpu", batch_size=BATCH, num_workers=workers, **options)
        for batch in loader:
            yield list(batch.values())

    return load


def text(kind: str, name: str) -> Callable[[Path, int], Iterable[Any]]:
    """Return a candidate over a file of text."""

    def load(folder: Path, workers: int = 0) -> Iterable[Any]:
        import gpuloader

        dataset = getattr(gpuloader, kind)(folder / name)
        loader = gpuloader.DataLoader(dataset, places="cpu", batch_size=BATCH, num_workers=workers)
        for batch in loader:
            yield list(batch.values())

    return load


def stored(
    kind: str, url: str, name: str, *, shuffled: bool = False, **more: Any
) -> Callable[[Path, int], Iterable[Any]]:
    """Return a candidate over an array."""

    def load(folder: Path, workers: int = 0) -> Iterable[Any]:
        import gpuloader

        arrays = None if kind == "ZarrDataset" else [name]
        dataset = getattr(gpuloader, kind)(folder / url, arrays)
        options: dict[str, Any] = {"batch_sampler": list(map(list, subset()))} if shuffled else {}
        options = options or {"batch_size": BATCH, **more}
        for batch in gpuloader.DataLoader(dataset, places="cpu", num_workers=workers, **options):
            yield list(batch.values())

    return load


def decode(sample: dict[str, Any]) -> Any:
    """Decode a picture with Pillow."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))


def own_pictures(folder: Path, workers: int = 0) -> Iterable[Any]:
    """Yield batches of pictures that Pillow decodes."""
    from gpuloader import DataLoader, TarDataset

    dataset = TarDataset(f"{folder}/{{0..3}}.tar", decode)
    for batch in DataLoader(dataset, places="cpu", batch_size=BATCH, num_workers=workers):
        yield [batch]


def own_stream(folder: Path, workers: int = 0) -> Iterable[Any]:
    """Yield batches of a Hugging Face stream."""
    from gpuloader import DataLoader

    for batch in DataLoader(stream(folder), places="cpu", batch_size=BATCH, num_workers=workers):
        yield list(batch.values())


def stream(folder: Path) -> Any:
    """Return a stream of Hugging Face."""
    import datasets

    files = str(folder / "stream.parquet")
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)


def subset() -> list[Any]:
    """Return the rows of each batch of a few random batches of the pixels."""
    chosen = np.random.default_rng(1).permutation(60_000)[: 8 * BATCH]
    return list(chosen.reshape(-1, BATCH))


OWN: dict[str, Callable[..., Iterable[Any]]] = {
    "Parquet, 20 float32 columns": parquet("columns"),
    "Parquet, one of two ranks": parquet("columns", shard=(0, 2)),
    "Parquet, float32[128]": parquet("vectors"),
    "Parquet, padded lists": parquet("lists", pad={"x": 0}),
    "Parquet, strings": parquet("strings"),
    "CSV, two numbers and a string": text("CSVDataset", "rows.csv"),
    "JSON Lines, the same": text("JSONLDataset", "rows.jsonl"),
    "Zarr, in order": stored("ZarrDataset", "pixels.zarr", "pixels"),
    "Zarr, shuffled subset": stored("ZarrDataset", "pixels.zarr", "pixels", shuffled=True),
    "HDF5, in order": stored("HDF5Dataset", "pixels.h5", "x"),
    "HDF5, in order, gzip": stored("HDF5Dataset", "pixels.h5", "gzip"),
    "HDF5, in order, numbers": stored("HDF5Dataset", "pixels.h5", "small"),
    "Zarr, shuffle='chunks'": stored("ZarrDataset", "pixels.zarr", "pixels", shuffle="chunks"),
    "HDF5, shuffle='chunks'": stored("HDF5Dataset", "pixels.h5", "x", shuffle="chunks"),
    "HDF5, shuffle='chunks', gzip": stored("HDF5Dataset", "pixels.h5", "gzip", shuffle="chunks"),
    "tar, Pillow": own_pictures,
    "Hugging Face stream": own_stream,
}
PEERS: dict[str, dict[str, Callable[..., Iterable[Any]]]] = {
    "Parquet, 20 float32 columns": {"pyarrow": arrow_columns, "polars": polars_columns},
    "Parquet, float32[128]": {"pyarrow": arrow_vectors},
    "Parquet, padded lists": {"pyarrow": arrow_lists},
    "Parquet, strings": {"pyarrow": arrow_strings},
    "CSV, two numbers and a string": {"pyarrow": lambda folder: arrow_text(folder, "rows.csv")},
    "JSON Lines, the same": {"pyarrow": lambda folder: arrow_text(folder, "rows.jsonl")},
    "Zarr, in order": {"zarr": zarr_order},
    "Zarr, shuffled subset": {"zarr": zarr_subset},
    "HDF5, in order": {"h5py": hdf5_order},
    "HDF5, in order, gzip": {"h5py": lambda folder: hdf5_order(folder, "gzip")},
    "HDF5, in order, numbers": {"h5py": lambda folder: hdf5_order(folder, "small")},
    # What half of the samples cost: all of them, by the same loader.
    "Parquet, one of two ranks": {ORDERED: parquet("columns")},
    # What the shuffle costs: the library's loop in order, and the same loader in order.
    "Zarr, shuffle='chunks'": {
        "zarr": zarr_order,
        ORDERED: stored("ZarrDataset", "pixels.zarr", "pixels"),
    },
    "HDF5, shuffle='chunks'": {"h5py": hdf5_order, ORDERED: stored("HDF5Dataset", "pixels.h5", "x")},
    "HDF5, shuffle='chunks', gzip": {
        "h5py": lambda folder: hdf5_order(folder, "gzip"),
        ORDERED: stored("HDF5Dataset", "pixels.h5", "gzip"),
    },
    "tar, Pillow": {"webdataset": webdataset_pictures},
    "Hugging Face stream": {"torch": torch_stream},
}
TAKES_WORKERS = {"gpuloader", ORDERED, "webdataset", "torch"}


def turn(case: str, library: str, workers: int, folder: Path) -> None:
    """Run one epoch and print its CPU and wall time in seconds."""
    imported = "gpuloader" if library == ORDERED else library
    __import__("datasets" if library == "torch" or "stream" in case else imported)
    candidate = OWN[case] if library == "gpuloader" else PEERS[case][library]
    options = {"workers": workers} if workers else {}
    next(iter(candidate(folder)))  # imports what the library loads late
    before, start = _cpu(), perf_counter()
    for batch in candidate(folder, **options):
        _ = batch[0][0]
    wall = perf_counter() - start
    print(json.dumps([_cpu() - before, wall]))


def _cpu() -> float:
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def main() -> None:
    """Measure the cases that are asked for, and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="*", default=list(OWN))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--turn", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.turn:
        case, library, workers, folder = given.turn
        turn(case, library, int(workers), Path(folder))
        return
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for case in given.case:
            there = (name for name in PEERS[case] if name == ORDERED or importlib.util.find_spec(name))
            libraries = ["gpuloader", *there]
            runs: dict[tuple[str, int], list[list[float]]] = {
                (name, workers): []
                for name in libraries
                for workers in ((0, 2) if name in TAKES_WORKERS else (0,))
            }
            for _ in range(given.rounds):
                for (name, workers), found in runs.items():
                    command = [sys.executable, "-m", "benchmarks.formats", "--turn", case, name, str(workers)]
                    # Where a core is free, NumPy's threads for BLAS spin for up to 20 ms after the import. A
                    # short epoch takes no longer, and its CPU time would include that.
                    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
                    done = subprocess.run(
                        [*command, folder], capture_output=True, text=True, check=False, env=alone
                    )
                    if done.returncode:
                        sys.exit(done.stderr)
                    found.append(json.loads(done.stdout.splitlines()[-1]))
            figures[case] = {}
            for (name, workers), found in runs.items():
                cpu, wall = (median(column) for column in zip(*found, strict=True))
                figures[case][f"{name}, {workers} workers"] = [round(cpu, 3), round(wall, 3)]
                print(
                    f"{case:30} {name:12} {workers} workers: CPU {cpu:.2f} s, wall {wall:.2f} s", flush=True
                )
    for case, found_of in figures.items():
        _print_rows(case, found_of)
    if given.output:
        report = {"machine": describe_machine(), "rounds": given.rounds, "unit": "s: CPU, wall"}
        write_report({**report, "figures": figures}, given.output)


def _print_rows(case: str, figures: dict[str, list[float]]) -> None:
    """Print a case's rows of the table: each peer, and what gpuloader takes with as many workers."""
    for workers in ("0 workers", "2 workers"):
        (cpu, wall), *_ = (pair for name, pair in figures.items() if name == f"gpuloader, {workers}")
        peers = {
            name: pair
            for name, pair in figures.items()
            if name.endswith(workers) and not name.startswith("gpuloader")
        }
        for name, pair in peers.items():
            theirs = f"{pair[0]:.2f} | {pair[1]:.2f}"
            print(f"| {case} | {name} | {theirs} | {cpu:.2f} | {wall:.2f} | {cpu / pair[0]:.2f} |")
        if not peers:
            print(f"| {case} | none, {workers} | | | {cpu:.2f} | {wall:.2f} | |")


if __name__ == "__main__":
    main()
