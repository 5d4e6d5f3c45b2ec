"""Buckets of texts for several devices, as gluonnlp's training scripts have it."""

import numpy as np
import torch
import gluonnlp as nlp

batch_size, devices = 16, 2
np.random.seed(2)
torch.manual_seed(2)

texts = [np.random.randint(1, 30, np.random.randint(2, 40)).tolist() for _ in range(300)]
train_dataset = [(text, len(text), float(text[0] > 15)) for text in texts]
lengths = [length for _, length, _ in train_dataset]

batchify_fn = nlp.data.batchify.Tuple(
    nlp.data.batchify.Pad(axis=0, pad_val=0),
    nlp.data.batchify.Stack(dtype="float32"),
    nlp.data.batchify.Stack(dtype="float32"),
)
batch_sampler = nlp.data.FixedBucketSampler(
    lengths,
    batch_size,
    num_buckets=5,
    ratio=0.5,
    shuffle=True,
    num_shards=devices,
    bucket_scheme=nlp.data.ExpWidthBucket(),
)
train_data = nlp.data.ShardedDataLoader(
    train_dataset, batch_sampler=batch_sampler, batchify_fn=batchify_fn, num_workers=2
)

embedding = torch.nn.Embedding(30, 1)
trainer = torch.optim.Adam(embedding.parameters(), 0.1)
loss_fn = torch.nn.BCEWithLogitsLoss()

groups = 0
for epoch in range(6):
    for data_list in train_data:
        losses = []
        for tokens, length, label in data_list:
            assert tokens.shape[1] == int(length.max())
            losses.append(loss_fn(embedding(tokens[:, 0]).squeeze(1), label))
        trainer.zero_grad()
        sum(losses).backward()
        trainer.step()
        groups += len(data_list) == devices

firsts = torch.tensor([text[0] for text in texts])
accuracy = ((embedding(firsts).squeeze(1) > 0) == (firsts > 15)).float().mean().item()
