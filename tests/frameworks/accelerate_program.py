"""Trains with Accelerate, and then with the Trainer of Transformers, several times on each of two ranks.

Each rank writes what it has seen to a file. One program does both, since what both import takes ten seconds.
"""

import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, GradientState
from accelerate.test_utils.scripts import test_script, test_sync
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import Dataset

import gpuloader
import gpuloader.torch
from gpuloader.accelerate import prepare, skip_first_batches
from tests.frameworks.transformers_program import train_with_trainer
from tests.launching import leave


class Steps(torch.optim.SGD):
    """Counts the steps that Accelerate lets through."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)


class Numbers(Dataset):
    """Remembers the epochs that it hears of."""

    def __init__(self, count):
        self.numbers, self.epochs = np.arange(count, dtype="float32"), []

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return self.numbers[index]

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


OPTIONS = {
    "loader": {},
    "config": {},
    "plain": False,  # pass the loader to accelerator.prepare
    "prefetch": False,  # read PyTorch's loader, as accelerator.prepare returns it
    "count": 22,
    "epochs": 2,
    "accumulate": 1,
    "save_after": 0,  # save the state after a step, and stop
    "state": None,  # the name of its folder
    "skip": 0,
    "torchs": False,  # train with PyTorch's own loader
    "rate": 0.0,  # the learning rate
    "direct": False,  # pass it to the function that accelerator.prepare calls
    "join": False,  # train within join_uneven_inputs, as on several GPUs
}


def main():
    folder, runs, trainings = Path(sys.argv[1]), *json.loads(sys.argv[2])
    all_options = {name: SimpleNamespace(**OPTIONS | run) for name, run in runs.items()}
    # Made before there are ranks; each run continues with the random numbers that its loader left.
    loaders = {name: (load(options), torch.get_rng_state()) for name, options in all_options.items()}
    for name, options in all_options.items():
        loader, state = loaders[name]
        torch.set_rng_state(state)
        train(folder, name, options, loader)
        AcceleratorState._reset_state()  # the processes still know each other
        GradientState._reset_state()

    run_the_checks_of_accelerate()
    for name, (kind, checkpoint) in trainings.items():
        train_with_trainer(folder, name, kind, checkpoint and str(folder / checkpoint))
    leave()


def run_the_checks_of_accelerate():
    """Run what Accelerate itself demands of PyTorch's loader, on ours."""
    with mock.patch.object(test_script, "DataLoader", gpuloader.torch.DataLoader):
        Accelerator(cpu=True)
        test_script.dl_preparation_check()
        test_script.central_dl_preparation_check()
        test_script.custom_sampler_check()
        test_script.check_seedable_sampler()
        test_script.check_seedable_sampler_with_data_seed()
        test_script.check_seedable_sampler_in_batch_sampler_shard()
        test_script.training_check(use_seedable_sampler=False)
    AcceleratorState._reset_state()
    with mock.patch.object(test_sync, "DataLoader", gpuloader.torch.DataLoader):
        test_sync.test_dataloader_break()
    AcceleratorState._reset_state()
    GradientState._reset_state()


def load(options):
    is_torchs = options.rate or "shard" not in options.loader
    kind = gpuloader.torch.DataLoader if is_torchs else gpuloader.DataLoader
    settings = {"batch_size": 4, "places": "cpu", "output": "torch", "shuffle": True, **options.loader}
    if options.torchs:
        kind, settings = torch.utils.data.DataLoader, {"batch_size": 4, "shuffle": True}
    if "generator" in settings:
        settings["generator"] = torch.Generator().manual_seed(int(os.environ["RANK"]))
    torch.manual_seed(3)
    return kind(Numbers(options.count), **settings)


def train(folder, name, options, loader):
    lengths = [len(loader)]
    PartialState(cpu=True)
    lengths.append(len(loader))
    state = folder / options.state if options.state else None
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=options.accumulate,
        dataloader_config=DataLoaderConfiguration(**options.config),
    )
    model = torch.nn.Linear(1, 1)
    optimizer = Steps(model.parameters(), lr=options.rate)
    found = {"seen": [], "gathered": [], "ends": [], "synced": [], "losses": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if options.prefetch:
            plain = torch.utils.data.DataLoader(torch.arange(float(options.count)), batch_size=4)
            model, optimizer, prepared = accelerator.prepare(model, optimizer, plain)
            batches = gpuloader.prefetch(prepared, places="cpu", prefetch=3)
        elif options.direct:
            model, optimizer = accelerator.prepare(model, optimizer)
            batches = prepare_data_loader(loader, put_on_device=True)
        elif options.plain:
            model, optimizer, batches = accelerator.prepare(model, optimizer, loader)
            kept = type(loader) is gpuloader.DataLoader or options.loader.keys() & {"seed", "cache"}
            assert (batches is loader) == bool(kept)
        else:
            model, optimizer = accelerator.prepare(model, optimizer)
            batches = prepare(accelerator, loader)
        if state and not options.save_after:
            accelerator.load_state(state)
        if options.skip and not options.plain:
            batches = skip_first_batches(batches, options.skip)
        steps = 0
        for epoch in range(options.epochs):
            active = batches
            if options.plain:
                batches.set_epoch(epoch)
                if options.skip and not epoch:
                    active = accelerator.skip_first_batches(batches, options.skip)
            joined = contextlib.ExitStack()
            if options.join:
                # Otherwise it joins nothing.
                joined.enter_context(mock.patch.object(Accelerator, "multi_device", True))
                joined.enter_context(accelerator.join_uneven_inputs([model], even_batches=False))
            with joined:
                for batch in active:
                    with accelerator.accumulate(model):
                        loss = model(batch.reshape(-1, 1)).sum()
                        found["losses"].append(loss.item())
                        accelerator.backward(loss)
                        optimizer.step()
                        optimizer.zero_grad()
                    found["seen"].append([epoch, batch.int().tolist()])
                    if not options.join:  # which allows no other collective
                        gathered = accelerator.gather_for_metrics(batch)
                        found["gathered"].append([epoch, gathered.int().tolist()])
                    found["ends"].append(accelerator.gradient_state.end_of_dataloader)
                    found["synced"].append(accelerator.sync_gradients)
                    steps += 1
                    if steps == options.save_after:
                        break
            if steps == options.save_after:
                break
        if options.save_after:
            accelerator.save_state(state)
    found["steps"] = optimizer.optimizer.count
    found["length"], found["epochs"] = len(batches), loader.dataset.epochs
    found["count"] = options.count
    found["lengths"], found["total"] = lengths, getattr(batches, "total_batch_size", None)
    heard = [str(one.message) for one in caught]
    found["warnings"] = [text for text in heard if "shard=" in text or "could not" in text]
    found["joined"] = sum("even_batches=False has no effect" in text for text in heard)
    (folder / f"{name}.{accelerator.process_index}").write_text(json.dumps(found))
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
