"""One process of two: what Lightning trains on."""

import json
import os
import sys

import lightning
import torch

from async_loader.compat.torch import DataLoader, StatefulDataLoader


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.tensor([float(i)])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, x):
        self.seen += x[:, 0].int().tolist()
        return (self.linear(x) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def main(out, kind):
    loader = StatefulDataLoader if kind == "stateful" else DataLoader
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
    )
    trainer.fit(model, loader(Rows(), batch_size=4, shuffle=True, num_workers=1))
    base = trainer.train_dataloader
    found = {"epochs": [model.seen], "kind": f"{type(base).__module__}.{type(base).__name__}"}
    with open(os.path.join(out, f"{trainer.global_rank}.json"), "w") as file:
        json.dump(found, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
