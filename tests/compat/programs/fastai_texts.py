"""Texts in the style of fastai: a loader that sorts by length, pads in before_batch, and streams
pairs of a language model.
"""

import torch
from fastai.data.load import DataLoader
from torch import nn

WORDS = 20


def texts(n):
    return [(torch.arange(3 + i % 7) % WORDS, i % 2) for i in range(n)]


def pad(samples):
    longest = max(len(x) for x, _ in samples)
    return [(torch.cat([x, x.new_zeros(longest - len(x))]), y) for x, y in samples]


class SortedDL(DataLoader):
    def __init__(self, dataset, **kwargs):
        self.res = [len(x) for x, _ in dataset]
        super().__init__(dataset, **kwargs)

    def get_idxs(self):
        idxs = super().get_idxs()
        return sorted(idxs, key=lambda i: self.res[i], reverse=True)


class LMDL(DataLoader):
    def __init__(self, stream, seq_len=4, **kwargs):
        super().__init__(stream, **kwargs)
        self.seq_len = seq_len
        self.n = (len(stream) - 1) // seq_len

    def create_item(self, i):
        text = self.dataset[i * self.seq_len : (i + 1) * self.seq_len + 1]
        return text[:-1], text[1:]


def main(num_workers=0):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, WORDS))
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    dls = [
        LMDL(torch.arange(161) % WORDS, bs=4, num_workers=num_workers),
        SortedDL(texts(30), bs=8, before_batch=pad, num_workers=num_workers),
    ]
    losses = []
    for _ in range(3):
        for x, y in dls[0]:
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
    shapes = [tuple(x.shape) for x, _ in dls[1]]
    return losses, shapes


if __name__ == "__main__":
    print(main())
