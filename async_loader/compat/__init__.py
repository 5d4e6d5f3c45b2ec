"""Signatures of other loaders on this package's pipeline: a script changes only its import line."""

from async_loader.errors import require
from async_loader.public_names import set_public_names

require("torch")
__all__ = [
    "accelerate", "ding", "fastai", "gluon", "gluonnlp", "sb3", "slime", "torch", "torchrl", "trl",
]  # fmt: skip
set_public_names(globals(), {name: f"{__name__}.{name}" for name in __all__})
