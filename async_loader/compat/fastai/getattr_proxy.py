"""Missing attributes of an object, looked up on the object that it wraps."""

from __future__ import annotations

from typing import Any


class GetAttrProxy:
    """Looks up missing attributes, also with one leading underscore,
    on the attribute named by ``_default``.
    """

    _default = "dataset"

    def __getattr__(self, name: str) -> Any:
        """Called only for attributes that do not exist here."""
        if not (name.startswith("__") and name.endswith("__")) and name != self._default:
            wrapped = vars(self).get(self._default)
            if wrapped is not None:
                try:
                    return getattr(wrapped, name)
                except AttributeError:
                    both = (
                        f"neither {type(self).__name__} nor its {self._default}, "
                        f"{type(wrapped).__name__}"
                    )
                    raise AttributeError(
                        f"{both}, has an attribute {name!r}", name=name, obj=self
                    ) from None
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self
        )

    def __dir__(self) -> list[str]:
        wrapped = vars(self).get(self._default)
        others = (
            [name for name in dir(wrapped) if not name.startswith("__")]
            if wrapped is not None
            else []
        )
        return sorted({*super().__dir__(), *others})
