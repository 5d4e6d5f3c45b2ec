"""torch's DataLoader, and torchdata's stateful one, on this package's pipeline.

from async_loader.compat.torch import DataLoader          # instead of torch.utils.data
from async_loader.compat.torch import StatefulDataLoader  # instead of torchdata.stateful_dataloader
"""

from async_loader.compat.torch.loader import DataLoader
from async_loader.compat.torch.stateful import StatefulDataLoader

__all__ = ["DataLoader", "StatefulDataLoader"]
