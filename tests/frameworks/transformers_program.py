"""Trains with the Trainer of Hugging Face's Transformers; each rank writes what it has seen to a file."""

import json
import sys

import torch
from transformers import Trainer, TrainingArguments

import gpuloader
from gpuloader.torch import DataLoader
from tests.launching import leave
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
        return DataLoader(self.train_dataset, self.args.per_device_train_batch_size, shuffle=True, seed=1)

    def get_eval_dataloader(self, eval_dataset=None):
        return DataLoader(self.eval_dataset, self.args.per_device_eval_batch_size)


def fetch(loader):
    return gpuloader.prefetch(loader, places="cpu", prefetch=3)


class Prefetching(Trainer):
    def get_train_dataloader(self):
        return fetch(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset=None):
        return fetch(super().get_eval_dataloader(eval_dataset))


def main():
    # The rank is appended to the file; a checkpoint may follow.
    output, folder, kind, *resume = sys.argv[1:]
    arguments = TrainingArguments(
        folder,
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
    kinds = {"own": OwnTrainer, "prefetch": Prefetching}
    trainer = kinds[kind](model, arguments, train_dataset=Made(number, 22), eval_dataset=Made(number, 10))
    trainer.train(resume_from_checkpoint=resume[0] if resume else None)
    found = {**model.seen, "steps": trainer.state.global_step}
    with open(f"{output}.{trainer.accelerator.process_index}", "w") as file:
        json.dump(found, file)
    trainer.accelerator.wait_for_everyone()
    leave()


if __name__ == "__main__":
    main()
