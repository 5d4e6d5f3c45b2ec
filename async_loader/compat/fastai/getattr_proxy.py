"""Attributes that an object lacks, looked up on the one that it wraps."""

from __future__ import annotations

from typing import Any


class GetAttrProxy:
    """Missing attributes, those with one leading underscore too, are those of the attribute that ``_default`` names."""

    _default = "dataset"

    def __getattr__(self, name: str) -> Any:
        """Called only when there is no such attribute here."""
        if not (name.startswith("__") and name.endswith("__")) and name != self._default:
            wrapped = vars(self).get(self._default)
            if wrapped is not None:
                try:
                    return getattr(wrapped, name)
                except AttributeError:
                    both = f"neither {type(self).__name__} nor its {self._default}, {type(wrapped).__name__}"
                    raise AttributeError(f"{both}, has an attribute {name!r}", name=name, obj=self) from None
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        wrapped = vars(self).get(self._default)
        others = [name for name in dir(wrapped) if not name.startswith("__")] if wrapped is not None else []
        return sorted({*super().__dir__(), *others})
