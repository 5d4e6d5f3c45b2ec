"""Signatures of other loaders on this package's pipeline: a script changes only its import line."""

from async_loader import tensors
from async_loader.public_names import set_public_names

tensors.require_torch()
__all__ = ["accelerate", "ding", "fastai", "gluon", "gluonnlp", "sb3", "torch", "torchrl"]
set_public_names(globals(), {name: f"{__name__}.{name}" for name in __all__})
