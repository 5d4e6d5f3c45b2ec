"""One process of two: what the Trainer of transformers trains on."""

import json
import os
import sys

import torch
from transformers import Trainer, TrainingArguments

from async_loader.compat import accelerate


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return {"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, x, labels):
        self.seen += x[:, 0].int().tolist()
        return {"loss": ((self.linear(x) - labels) ** 2).mean()}


def main(out, _):
    accelerate.install()
    model = Model()
    arguments = TrainingArguments(
        output_dir=os.path.join(out, "trainer"),
        per_device_train_batch_size=4,
        num_train_epochs=1,
        dataloader_num_workers=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(model, arguments, train_dataset=Rows())
    base = trainer.get_train_dataloader().base_dataloader
    trainer.train()
    found = {"epochs": [model.seen], "kind": f"{type(base).__module__}.{type(base).__name__}"}
    with open(os.path.join(out, f"{arguments.process_index}.json"), "w") as file:
        json.dump(found, file)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
