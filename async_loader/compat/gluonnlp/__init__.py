"""gluonnlp's ``ShardedDataLoader``, its samplers and batchify functions, over this library's pipeline.

``from async_loader.compat import gluonnlp as nlp`` for ``import gluonnlp as nlp``: what was in ``nlp.data`` is there.
"""

from async_loader.compat.gluonnlp import data
from async_loader.compat.gluonnlp.data import *  # noqa: F403
from async_loader.compat.gluonnlp.data import __all__ as _names

__all__ = ["data", *_names]
