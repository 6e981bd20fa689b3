"""Fits, validates and predicts with Lightning; each rank writes what it has seen to a file.

Lightning starts the second process itself: it runs this script again.
"""

import argparse
import json
import logging
import sys
import warnings

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

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


def load(options, **more):
    datasets = {"arrays": np.arange(COUNT, dtype="float32"), "items": Items(), "sized": SizedItems()}
    given = json.loads(options.loader)
    shuffle = (
        {"shuffle": True, "seed": 1} if options.dataset == "arrays" and more.pop("shuffle", False) else {}
    )
    common = {"batch_size": 4, "places": "cpu", "output": "torch"}
    kind = gpuloader.DataLoader if "shard" in given else gpuloader.torch.DataLoader
    return kind(datasets[options.dataset], **{**common, **shuffle, **given})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", help="file to write to, with the rank appended")
    parser.add_argument("--dataset", default="arrays")
    parser.add_argument("--loader", default="{}")
    parser.add_argument("--trainer", default="{}")
    parser.add_argument("--checkpoints", help="folder for a checkpoint after every step")
    parser.add_argument("--resume", help="checkpoint to resume from")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--predict", action="store_true")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    every = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
    callbacks = [ModelCheckpoint(options.checkpoints, **every)] if options.checkpoints else []

    # Made before the trainer starts the other process, when there are no ranks yet.
    train, validate = load(options, shuffle=True), load(options) if options.validate else None
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        enable_checkpointing=bool(callbacks),
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        **{"strategy": "ddp", "devices": 2, "max_epochs": 2, **json.loads(options.trainer)},
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, train, validate, ckpt_path=options.resume, weights_only=False)
        if options.predict:
            trainer.predict(model, load(options), return_predictions=False)
    told = [str(one.message) for one in caught if "shard=" in str(one.message)]
    found = {**model.seen, "length": options.dataset == "items" or len(train), "warnings": told}
    with open(f"{options.output}.{trainer.global_rank}", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    sys.exit(main())
