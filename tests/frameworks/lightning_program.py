"""Fits, validates and predicts with Lightning, several times; each rank writes what it has seen to a file.

Lightning starts the second process itself: it runs this script again.
"""

import json
import logging
import sys
import warnings
from pathlib import Path

import lightning
import numpy as np
import torch
from lightning.fabric.utilities.data import _replace_dunder_methods
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.data import _update_dataloader
from torch.utils.data import DistributedSampler

import gpuloader
import gpuloader.torch
from gpuloader import IterableDataset

COUNT = 22


class Items(IterableDataset):
    def __iter__(self):
        return iter(np.arange(COUNT, dtype="float32"))


class SizedItems(Items):
    def __len__(self):
        return COUNT


class Model(lightning.LightningModule):
    """Records the samples of each step, with the epoch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = {"train": [], "validate": [], "predict": []}

    def record(self, kind, batch):
        numbers, *masks = batch if isinstance(batch, list) else [batch]
        self.seen[kind].append(
            [self.current_epoch, numbers.int().tolist(), *(mask.tolist() for mask in masks)]
        )
        return numbers

    def training_step(self, batch, number):
        return self.layer(self.record("train", batch).reshape(-1, 1)).sum()

    def validation_step(self, batch, number):
        self.record("validate", batch)

    def predict_step(self, batch, number):
        return self.record("predict", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def load(run, **more):
    if run.get("prefetch"):
        loader = torch.utils.data.DataLoader(torch.arange(float(COUNT)), batch_size=4)
        return gpuloader.prefetch(loader, places="cpu", prefetch=3)
    arrays = np.arange(run.get("count", COUNT), dtype="float32")
    datasets = {"arrays": arrays, "items": Items(), "sized": SizedItems()}
    given, dataset = run.get("loader", {}), run.get("dataset", "arrays")
    kind = gpuloader.DataLoader if "shard" in given else gpuloader.torch.DataLoader
    options = {"batch_size": 4, "places": "cpu", "output": "torch"}
    return kind(datasets[dataset], **options, **(more if dataset == "arrays" else {}), **given)


def main():
    # The folder is for checkpoints, and for a file of each run and rank; the runs are done one after another.
    folder, runs = Path(sys.argv[1]), json.loads(sys.argv[2])
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    # Made before the trainer starts the other process, when there are no ranks yet.
    loaders = [
        (load(run, shuffle=True, seed=1), load(run) if run.get("validate") else None) for run in runs.values()
    ]
    for (name, run), (train, validate) in zip(runs.items(), loaders, strict=True):
        fit(folder, name, run, train, validate)


def find_workers_again():
    """Return whether a loader that Lightning makes again finds its number of workers too."""
    loader = gpuloader.torch.DataLoader(range(8), num_workers="auto", shard=None)
    again = _update_dataloader(loader, DistributedSampler(range(8), 2, 0))
    return again._epochs.workers == loader._epochs.workers


def make_again_as_in_a_hook(base):
    """Return the batches of loaders that a hook made in several ways, and Lightning made again."""

    class Own(base):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)

    found = []
    ways = ((4,), {"shuffle": True}), ((4,), {"drop_last": True}), ((), {"batch_size": 4})
    for kind in (base, Own):
        for args, options in ways:
            with _replace_dunder_methods(torch.utils.data.DataLoader, "dataset"):
                loader = kind(range(10), *args, **options)
            again = _update_dataloader(loader, DistributedSampler(range(10), 2, 1, shuffle=False))
            found.append([batch.tolist() for batch in again])
    return found


def fit(folder, name, run, train, validate):
    every = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder / name, **every)] if run.get("checkpoints") else [],
        enable_checkpointing=run.get("checkpoints", False),
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        **{"strategy": "ddp", "devices": 2, "max_epochs": 2, **run.get("trainer", {})},
    )
    resume = folder / run["resume"] if "resume" in run else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, train, validate, ckpt_path=resume, weights_only=False)
        if run.get("predict"):
            trainer.predict(model, load(run), return_predictions=False)
    told = [str(one.message) for one in caught if "shard=" in str(one.message)]
    found = {**model.seen, "length": run.get("dataset") == "items" or len(train), "warnings": told}
    found["workers are found again"] = find_workers_again()
    ours, theirs = map(make_again_as_in_a_hook, (gpuloader.torch.DataLoader, torch.utils.data.DataLoader))
    found["loaders of hooks are made again"] = ours == theirs
    (folder / f"{name}.{trainer.global_rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
