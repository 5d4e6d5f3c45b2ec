"""torch's DataLoader, and torchdata's stateful one, on this package's pipeline.

from async_loader.compat.torch import DataLoader, Dataset, random_split  # for torch.utils.data
from async_loader.compat.torch import StatefulDataLoader  # for torchdata.stateful_dataloader

The loaders are of this package, all other names of ``torch.utils.data`` are torch's own.
"""

from torch.utils.data import *  # noqa: F403
from torch.utils.data import __all__ as _names

from async_loader.compat.torch.loader import DataLoader as DataLoader
from async_loader.compat.torch.stateful import StatefulDataLoader
from async_loader.public_names import set_public_names

__all__ = [*_names, "StatefulDataLoader"]
set_public_names(globals())
