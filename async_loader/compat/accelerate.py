"""Support for accelerate, and for libraries that prepare their loaders with it,
such as the Trainer of transformers.

    from async_loader.compat import accelerate
    accelerate.install()  # before Accelerator.prepare, or before the Trainer is made

accelerate replaces each loader that it prepares by one of its own: it shards the order over the
processes, and iterates over a ``torch.utils.data.DataLoader`` that it builds from the attributes
of the given one. After `install` the one that it builds is
`async_loader.compat.torch.DataLoader`, and with ``use_stateful_dataloader`` the
`StatefulDataLoader` beside it. accelerate still does the sharding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from async_loader.compat.torch import DataLoader, StatefulDataLoader
from async_loader.errors import of_extra
from async_loader.public_names import set_public_names

__all__ = [
    "install",
]
set_public_names(globals())

_INSTALLED = "_async_loader_installed"


def install() -> None:
    """Make every loader that accelerate prepares from now on in this process iterate with ours;
    idempotent.

    Raises
    ------
    MissingExtra
        accelerate is not installed.
    """
    theirs = of_extra("accelerate.data_loader", "integrations")
    adapter: Any = theirs.DataLoaderAdapter
    if getattr(adapter, _INSTALLED, False):
        return
    theirs.DataLoader = DataLoader
    adapter.__init__ = _stateful_too(adapter.__init__)
    setattr(adapter, _INSTALLED, True)


def _stateful_too(init: Callable[..., None]) -> Callable[..., None]:
    """Replace the constructor of the object that accelerate iterates over,
    which would use torchdata's stateful loader.
    """

    @functools.wraps(init)
    def adapted(
        self: Any,
        dataset: Any,
        use_stateful_dataloader: bool = False,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        init(self, dataset, batch_sampler=batch_sampler, **kwargs)
        if use_stateful_dataloader:
            self.use_stateful_dataloader = True
            self.base_dataloader = StatefulDataLoader(
                dataset, batch_sampler=batch_sampler, **kwargs
            )
            self.dl_state_dict = self.base_dataloader.state_dict()

    return adapted
