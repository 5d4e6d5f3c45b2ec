"""gluonnlp's ``ShardedDataLoader``, its samplers and batchify functions,
on this package's pipeline.

``from async_loader.compat import gluonnlp as nlp`` for ``import gluonnlp as nlp``: the names of
``nlp.data`` are available.
"""

from async_loader.compat.gluonnlp import data
from async_loader.compat.gluonnlp.data import *  # noqa: F403
from async_loader.compat.gluonnlp.data import __all__ as _names
from async_loader.public_names import set_public_names

__all__ = ["data", *_names]
set_public_names(globals())
