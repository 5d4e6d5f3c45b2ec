"""Offline data in the style of DI-engine: jobs that decode one frame each,
run by worker processes in chunks.
"""

import zlib
from functools import partial

import numpy as np
import torch
from ding.utils.data import AsyncDataLoader

FRAMES = [zlib.compress(np.full((8, 8), i, np.uint8).tobytes()) for i in range(32)]


class Frames:
    def __getitem__(self, i):
        frame = np.frombuffer(zlib.decompress(FRAMES[i]), np.uint8).reshape(1, 8, 8)
        return {"obs": torch.from_numpy(frame.copy()), "label": i % 2, "idx": i}

    def __len__(self):
        return len(FRAMES)


def main(num_workers=2, chunk_size=4):
    dataset = Frames()
    order = iter(range(10**9))

    def data_source(batch_size):
        first = next(order) * batch_size
        return [partial(dataset.__getitem__, (first + i) % len(dataset)) for i in range(batch_size)]

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    dataloader = AsyncDataLoader(
        data_source, 16, "cpu", chunk_size=chunk_size, num_workers=num_workers
    )
    seen = []
    for data in dataloader:
        if len(seen) == 4:
            break
        loss = torch.nn.functional.cross_entropy(net(data["obs"].float() / 255), data["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert data["obs"].shape == (16, 1, 8, 8)
        assert sorted(data["idx"].tolist()) == sorted(data["obs"][:, 0, 0, 0].tolist())
        seen.append(data["idx"])
    dataloader.close()
    return torch.cat(seen)


if __name__ == "__main__":
    print(main())
