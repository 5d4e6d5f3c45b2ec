"""Images in the style of fastai's low level: datasets of pairs, two loaders, one epoch of
training and one of validation.
"""

import random

import numpy as np
import torch
from fastai.data.load import DataLoader, SkipItemException
from torch import nn


class Digits:
    """Images whose brightness is their label, some of which cannot be read."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 10, n)
        self.c = 10

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        if i % 17 == 16:
            raise SkipItemException
        return np.full((1, 8, 8), self.labels[i], np.float32), int(self.labels[i])


def normalize(b):
    x, y = b
    return (x - 4.5) / 3, y


def main(num_workers=0, epochs=3):
    torch.manual_seed(1)
    random.seed(1)
    train_dl = DataLoader(
        Digits(256, 0),
        bs=32,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        after_batch=normalize,
    )
    valid_dl = train_dl.new(Digits(64, 1), shuffle=False, drop_last=False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, train_dl.c))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    xb, yb = train_dl.one_batch()
    assert xb.shape == (32, 1, 8, 8)
    losses, seen = [], []
    for _ in range(epochs):
        model.train()
        for xb, yb in train_dl:
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            opt.step()
            opt.zero_grad()
        model.eval()
        with torch.no_grad():
            batches = [
                (nn.functional.cross_entropy(model(xb), yb, reduction="sum").item(), len(yb))
                for xb, yb in valid_dl
            ]
        losses.append(sum(loss for loss, _ in batches) / sum(n for _, n in batches))
        seen.append(sum(n for _, n in batches))
    return losses, seen


if __name__ == "__main__":
    print(main())
