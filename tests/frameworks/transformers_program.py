"""Trains with the Trainer of Transformers; each rank writes what it has seen to a file."""

import json

import torch
from transformers import Trainer, TrainingArguments

import gpuloader
from gpuloader.torch import DataLoader
from tests.sample_sets import Made


def number(index):
    return {"x": torch.tensor([float(index)]), "labels": torch.tensor(float(index))}


class Model(torch.nn.Module):
    """Records the samples of each step."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = {"train": [], "evaluate": []}

    def forward(self, x, labels):
        self.seen["train" if self.training else "evaluate"].append(x.flatten().int().tolist())
        found = self.layer(x).flatten()
        return {"loss": (found - labels).sum() * 0, "logits": found}


class OwnTrainer(Trainer):
    def get_train_dataloader(self):
        size = self.args.per_device_train_batch_size
        return self.accelerator.prepare(DataLoader(self.train_dataset, size, shuffle=True, seed=1))

    def get_eval_dataloader(self, eval_dataset=None):
        return DataLoader(self.eval_dataset, self.args.per_device_eval_batch_size)


def fetch(loader):
    return gpuloader.prefetch(loader, places="cpu", prefetch=3)


class Prefetching(Trainer):
    def get_train_dataloader(self):
        return fetch(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset=None):
        return fetch(super().get_eval_dataloader(eval_dataset))


KINDS = {"own": OwnTrainer, "theirs": Trainer, "prefetch": Prefetching}


def train_with_trainer(folder, name, kind, checkpoint):
    arguments = TrainingArguments(
        folder / f"checkpoints of {name}",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        num_train_epochs=2,
        save_steps=2,
        eval_strategy="epoch",
        train_sampling_strategy="sequential",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model = Model()
    trainer = KINDS[kind](model, arguments, train_dataset=Made(number, 22), eval_dataset=Made(number, 10))
    trainer.train(resume_from_checkpoint=checkpoint)
    found = {**model.seen, "steps": trainer.state.global_step}
    (folder / f"{name}.{trainer.accelerator.process_index}").write_text(json.dumps(found))
    trainer.accelerator.wait_for_everyone()
