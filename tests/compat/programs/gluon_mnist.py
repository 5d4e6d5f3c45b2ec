"""A classifier of small images, as gluon's tutorials have it."""

import numpy as np
import torch
from mxnet import gluon

batch_size, epochs = 32, 3
np.random.seed(0)
torch.manual_seed(0)

labels = np.random.randint(0, 10, 600)
images = (np.random.rand(600, 28, 28, 1) * 64).astype(np.uint8)
for image, label in zip(images, labels):
    image[2 * label : 2 * label + 4] += 150  # what there is to learn


def transformer(data):
    return data.reshape(-1).astype(np.float32) / 255


train_set = gluon.data.ArrayDataset(images[:500], labels[:500]).transform_first(transformer)
val_set = gluon.data.ArrayDataset(images[500:], labels[500:]).transform_first(transformer)
train_data = gluon.data.DataLoader(
    train_set, batch_size, shuffle=True, last_batch="rollover", num_workers=2
)
val_data = gluon.data.DataLoader(val_set, batch_size, shuffle=False, num_workers=0)

net = torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
trainer = torch.optim.Adam(net.parameters(), 0.01)
loss_fn = torch.nn.CrossEntropyLoss()


def test():
    right = count = 0
    for data, label in val_data:
        right += (net(data).argmax(1) == label).sum().item()
        count += len(label)
    return right / count


seen = 0
for epoch in range(epochs):
    for i, (data, label) in enumerate(train_data):
        loss = loss_fn(net(data), label)
        trainer.zero_grad()
        loss.backward()
        trainer.step()
        seen += len(label)

accuracy = test()
