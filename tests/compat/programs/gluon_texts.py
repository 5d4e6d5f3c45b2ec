"""Texts of different lengths, padded batch by batch."""

import numpy as np
import torch
from mxnet.gluon.data import DataLoader, SimpleDataset, batchify

np.random.seed(1)
torch.manual_seed(1)

words = [np.random.randint(1, 50, np.random.randint(3, 12)).tolist() for _ in range(400)]
samples = [(text, float(max(text) > 40), f"text {i}") for i, text in enumerate(words)]
dataset = SimpleDataset(samples).filter(lambda sample: len(sample[0]) > 3)

batchify_fn = batchify.Group(batchify.Pad(val=0, round_to=4), batchify.Stack(), batchify.AsList())
train, test = dataset.shard(2, 0), dataset.shard(2, 1)
loader = DataLoader(
    train,
    batch_size=25,
    shuffle=True,
    batchify_fn=batchify_fn,
    num_workers=2,
    thread_pool=True,
    prefetch=3,
)

embedding = torch.nn.EmbeddingBag(50, 1, mode="max", padding_idx=0)
bias = torch.zeros((), requires_grad=True)
trainer = torch.optim.Adam([*embedding.parameters(), bias], 0.1)
loss_fn = torch.nn.BCEWithLogitsLoss()

names = set()
for epoch in range(8):
    for tokens, label, name in loader:
        assert tokens.shape[1] % 4 == 0
        loss = loss_fn(embedding(tokens).squeeze(1) + bias, label.float())
        trainer.zero_grad()
        loss.backward()
        trainer.step()
        names.update(name)

right = 0
for tokens, label, _ in DataLoader(test, 50, batchify_fn=batchify_fn):
    right += ((embedding(tokens).squeeze(1) + bias > 0) == label.bool()).sum().item()
accuracy = right / len(test)
