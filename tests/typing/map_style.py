"""A map-style dataset with a collate function of its own, in worker processes and in threads."""

from __future__ import annotations

from typing import NamedTuple

import torch

from async_loader import DataLoader


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


class Squares:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(i)), i * i


def collate(items: list[tuple[torch.Tensor, int]]) -> Pair:
    return Pair(
        torch.stack([image for image, _ in items]), torch.tensor([label for _, label in items])
    )


def total(loader: DataLoader[Pair]) -> int:
    return sum(int(batch.label.sum()) for batch in loader)


def main() -> None:
    with DataLoader(
        Squares(), 6, last_batch="keep", num_workers=2, collate_fn=collate, timeout_s=60
    ) as loader:
        assert total(loader) == sum(i * i for i in range(20))
    with DataLoader(
        Squares(), 6, num_workers=2, worker_type="thread", collate_fn=collate
    ) as loader:
        assert total(loader) == sum(i * i for i in range(20))
        assert len(loader) == 4


if __name__ == "__main__":
    main()
