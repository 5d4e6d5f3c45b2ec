"""Conformance tests for users of the protocols.

Import the module that you need from here.
"""

from async_loader.public_names import set_public_names

__all__ = ["conformance"]
set_public_names(globals(), {name: f"{__name__}.{name}" for name in __all__})
