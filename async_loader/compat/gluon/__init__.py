"""MXNet gluon's ``DataLoader`` and related names on this package's pipeline.

``from async_loader.compat.gluon import DataLoader`` for ``from mxnet.gluon.data import
DataLoader``, or ``from async_loader.compat import gluon`` for ``from mxnet import gluon``: the
names of ``gluon.data`` are available.
"""

from async_loader.compat.gluon import data
from async_loader.compat.gluon.data import *  # noqa: F403
from async_loader.compat.gluon.data import __all__ as _names
from async_loader.public_names import set_public_names

__all__ = ["data", *_names]
set_public_names(globals())
