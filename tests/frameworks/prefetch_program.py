"""Trains with a framework over its own loaders, wrapped by `prefetch`; writes what it saw to a file."""

import json
import logging
import sys
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

import gpuloader

COUNT = 10


def load():
    return DataLoader(TensorDataset(torch.arange(float(COUNT))), batch_size=4)


def fetch(loader):
    return gpuloader.prefetch(loader, places="cpu", prefetch=3)


def fit_lightning(folder):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen, self.validated = [], []

        def training_step(self, batch, number):
            self.seen.append(batch[0].int().tolist())
            return self.layer(batch[0].reshape(-1, 1)).sum()

        def validation_step(self, batch, number):
            self.validated.append(batch[0].int().tolist())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    def train(epochs, resume=None):
        every = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
        model, loader = Model(), fetch(load())
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=epochs,
            logger=False,
            callbacks=[ModelCheckpoint(folder, **every)] if resume is None else [],
            enable_checkpointing=resume is None,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader, fetch(load()), ckpt_path=resume, weights_only=False)
        return model, len(loader)

    model, length = train(2)
    resumed, _ = train(2, f"{folder}/step=2.ckpt")
    return {"seen": model.seen, "validated": model.validated, "resumed": resumed.seen, "length": length}


def fit_accelerate(folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, load())
    batches = fetch(loader)
    found = {"seen": [], "ends": [], "synced": [], "gathered": [], "steps": 0}
    for _ in range(2):
        for (batch,) in batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch.reshape(-1, 1)).sum())
                optimizer.step()
                optimizer.zero_grad()
            found["seen"].append(batch.int().tolist())
            found["ends"].append(accelerator.gradient_state.end_of_dataloader)
            found["synced"].append(accelerator.sync_gradients)
            found["gathered"].append(accelerator.gather_for_metrics(batch).int().tolist())
            found["steps"] += accelerator.sync_gradients
    return found


def fit_transformers(folder):
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

    seen = []

    class Model(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, numbers, labels=None):
            if self.training:
                seen.append(numbers.int().tolist())
            return {"loss": self.layer(numbers.reshape(-1, 1)).sum() * 0, "logits": numbers}

    class Prefetching(Trainer):
        def get_train_dataloader(self):
            return fetch(super().get_train_dataloader())

        def get_eval_dataloader(self, eval_dataset=None):
            return fetch(super().get_eval_dataloader(eval_dataset))

    rows = [{"numbers": float(number), "labels": number} for number in range(COUNT)]
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
    )
    trainer = Prefetching(Model(PretrainedConfig()), arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    return {"seen": seen, "evaluated": len(trainer.predict(rows).predictions)}


def fit_datasets(folder):
    from datasets import Dataset

    rows = Dataset.from_dict({"x": list(range(COUNT)), "name": [f"n{n}" for n in range(COUNT)]})
    stream = rows.to_iterable_dataset().with_format("torch").batch(4)
    loader = fetch(stream)
    seen, state = [], None
    for number, batch in enumerate(loader):
        assert type(batch["x"]) is torch.Tensor
        assert batch["name"][0] == f"n{4 * number}"
        seen.append(batch["x"].tolist())
        state = loader.state_dict() if not number else state
    later = fetch(rows.to_iterable_dataset().with_format("torch").batch(4))
    later.load_state_dict(state)
    streamed = fetch(rows.with_format("torch").iter(batch_size=4))
    return {
        "seen": seen,
        "resumed": [batch["x"].tolist() for batch in later],
        "streamed": [batch["x"].tolist() for batch in streamed],
    }


def main():
    output, framework, folder = sys.argv[1:]  # the folder is for checkpoints
    found = globals()[f"fit_{framework}"](folder)
    with open(output, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
