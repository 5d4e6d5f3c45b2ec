"""Names in messages: short names of callables and objects, and remedies for wrong keywords.

The tables of names in other libraries are in hint_tables.py.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from async_loader import hint_tables

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=type)


def _rows(text: str) -> list[list[str]]:
    """Return the cells of a table of `hint_tables`, line by line."""
    return [line.split(" -> ") for line in re.sub(r"\n {4}", " ", text).strip().splitlines()]


SAY: dict[str, tuple[str, ...]] = {}
"""A wrong keyword and its replacements, in the order of preference."""
for _words, _ours in _rows(hint_tables.SAY):
    for _word in _words.split():
        SAY[_word] = (*SAY.get(_word, ()), _ours)

LEAVE_OUT = {
    (words.split()[0], word): remedy
    for words, remedy in _rows(hint_tables.LEAVE_OUT)
    for word in words.split()[1:]
}
"""Keywords without a replacement in a callable of ours, and the reason or the remedy."""

ATTRIBUTES = [
    (words.split(), needed, remedy) for words, needed, remedy in _rows(hint_tables.ATTRIBUTES)
]

PUBLIC: dict[str, dict[str, str]] = {}
"""Names that a user might expect in a module, and what to write in their place."""
for _part in hint_tables.PUBLIC.split("## ")[1:]:
    _modules, _, _text = _part.partition("\n")
    _known = {word: remedy for words, remedy in _rows(_text) for word in words.split()}
    PUBLIC |= dict.fromkeys(_modules.split(), _known)


def hint(word: str, known: Iterable[str], owner: str = "") -> str:
    """Return the remedy for ``word`` as the end of a message.

    Parameters
    ----------
    word : str
        The given name.
    known : iterable of str
        The valid names.
    owner : str
        The callable, as "DataLoader" or "ReplayBuffer.sample", to look up in `LEAVE_OUT`.

    Returns
    -------
    str
        "say timeout_s", "did you mean 'num_workers'?" or "it takes dataset, batch_size".
    """
    names = [str(one) for one in known]
    if (owner, word) in LEAVE_OUT:
        return LEAVE_OUT[owner, word]
    for ours in SAY.get(word, ()):
        if _keyword(ours) in names:
            return f"say {ours}"
    return nearest(word, names)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the name in ``known`` closest to ``word`` in spelling, or all of them,
    as the end of a message.
    """
    names = [str(one) for one in known]
    near = difflib.get_close_matches(word, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(names)}"


def missing_field(name: str, batch: Mapping[str, Any]) -> str:
    """Return what to do for a field that a batch does not have, as a message."""
    known = list(map(str, batch))
    word = re.sub("next|new", "", name).strip("_")
    said = hint(name, known).replace("it takes", "it has")
    if word != name and not any(one.startswith("next") for one in known):
        own = [one for one in (word, *SAY.get(word, ()), "obs") if one in known]
        of = f" for {own[0]!r}" if own else ""
        said = (
            f"a table delivers the value of the step that follows if its schema asks for it: "
            f"say Field(..., next='next_{own[0] if own else word}'){of}"
        )
    elif word != name and said.startswith("it has"):
        said = f"say {next(one for one in known if one.startswith('next'))!r}"
    elif name in ("weight", "weights", "is_weights") and "weight" not in known:
        said = "a table has weights if it was made with sampler=Prioritized(...)"
    elif name.startswith("discount"):
        said = "it comes with view=Transitions(n_steps=..., gamma=...)"
    return f"the batch has no field {name!r}: {said}"


def _keyword(ours: str) -> str:
    """Return the parameter of a remedy: "last_batch" of "last_batch='drop'"."""
    return ours.replace(",", "=").split("=", 1)[0]


def attribute_remedy(kind: type, name: str) -> str:
    """Return what objects of this class have in place of an attribute; "" if that is unknown."""
    return next(
        (remedy for words, needed, remedy in ATTRIBUTES if name in words and hasattr(kind, needed)),
        "",
    )


def explain_wrong_attributes(kind: T) -> T:
    """Decorate a class: the AttributeError for a name in `ATTRIBUTES` names the replacement
    that the object has.

    Existing attributes cost nothing extra. Type checkers see the class unchanged.
    """

    def look(self: object, name: str) -> Any:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        remedy = attribute_remedy(type(self), name)
        raise AttributeError(f"{text}: {remedy}" if remedy else text, name=name, obj=self)

    kind.__getattr__ = look  # type: ignore[attr-defined]
    return kind


def explain_wrong_names(function: F) -> F:
    """Decorate a callable: a TypeError of its call names the right keyword, and with ``**fields``
    says that they are named.

    A valid call costs one more frame. Do not use it where a result must not be lost (``append`` of
    one step): Python may handle a signal in that frame, after the call.
    Warnings within ``function`` take their level from `stacklevel`.

    >>> @explain_wrong_names
    ... def wait(*, timeout_s=None): ...
    >>> wait(timeout=3)
    Traceback (most recent call last):
    TypeError: wait() has no timeout: say timeout_s
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            # raised by the call itself, not within the function
            if trace is not None and trace.tb_next is None:
                _explain(function, args, kwargs)
            raise

    return cast(F, call)


def by_name(function: F) -> F:
    """Decorate a method ``(self, step=None, /, *misplaced, ...)`` that takes fields by name:
    hides ``misplaced``.

    The method itself raises `misplaced_fields`, so a call needs no extra frame. For methods that
    append steps, see `explain_wrong_names`.
    """
    signature = inspect.signature(function)
    shown = [one for one in signature.parameters.values() if one.kind is not one.VAR_POSITIONAL]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def misplaced_fields(method: str, misplaced: tuple[Any, ...], what: str = "step") -> TypeError:
    """Return the TypeError for fields given by position."""
    example = "obs=..., action=..., reward=..."
    return TypeError(
        f"{method}() takes one {what} by place, a dict of fields, and {len(misplaced) + 1} values "
        "were given: name the fields, "
        f"as in {method.rpartition('.')[2]}({example})"
    )


def _explain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError with the remedy;
    return if Python's own message is enough (a missing argument).
    """
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    owner = _owner(
        function, args[0] if args and len(parameters) < len(signature.parameters) else None
    )
    named = [
        one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    takes_fields = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for word in kwargs:
        if word not in named and not takes_fields:
            raise TypeError(f"{owner}() has no {word}: {hint(word, named, owner)}") from None
    placed = [
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    given = len(args) - (len(signature.parameters) - len(parameters))
    if given > len(placed):
        only = f"takes {', '.join(placed)} by place" if placed else "takes nothing by place"
        names = ", ".join(f"{one}=" for one in named if one not in placed)
        if takes_fields:
            names = f"obs=, action=, reward=, {names}"
        raise TypeError(
            f"{owner}() {only}, and {given} values were given: name the others ({names})"
        ) from None


def _owner(function: Callable[..., Any], bound: object) -> str:
    """Return the name of a callable as users write it: "DataLoader", "ReplayBuffer.sample",
    "connect".
    """
    *_, name = function.__qualname__.split(".")
    if bound is None:
        return function.__qualname__.rsplit("<locals>.", 1)[-1].removesuffix(".__init__")
    kind = (bound if isinstance(bound, type) else type(bound)).__name__
    return kind if name == "__init__" else f"{kind}.{name}"


def stacklevel() -> int:
    """Return the stack level for a warning of the calling function,
    so that it points at the user's line.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(
        "async_loader."
    ):
        level, frame = level + 1, frame.f_back
    return level


def describe(obj: Any) -> str:
    """Describe a callable or object and where it is defined. Short; never prints large values."""
    if isinstance(obj, functools.partial):
        arguments = ", ".join(_brief(a) for a in obj.args)
        return f"partial({describe(obj.func)}{', ' if arguments else ''}{arguments})"
    bound = getattr(obj, "__self__", None)
    code = getattr(getattr(obj, "__func__", obj), "__code__", None)
    if code is not None:
        owner = f"{type(bound).__qualname__}." if bound is not None else ""
        return f"{owner}{obj.__name__} ({code.co_filename}:{code.co_firstlineno})"
    # a class, or a method written in C
    if isinstance(obj, type) or (callable(obj) and hasattr(obj, "__qualname__")):
        return f"{obj.__module__ or ''}.{obj.__qualname__}".removeprefix(".").removeprefix(
            "builtins."
        )
    return _brief(obj)


def _brief(obj: object) -> str:
    text = (
        repr(obj)
        if isinstance(obj, str | bytes | int | float | bool | type(None))
        else f"<{type(obj).__qualname__}>"
    )
    return text if len(text) <= 60 else text[:57] + "..."


if TYPE_CHECKING:
    class_only = classmethod
else:

    class class_only(classmethod):
        """A classmethod that refuses a call on an object, which it would leave as it is."""

        def __get__(self, one, owner=None):
            if one is None:
                return super().__get__(None, owner)

            def refused(*_, **__):
                from async_loader.errors import ConfigError

                raise ConfigError(
                    f"{self.__name__}() makes another table, this one stays as it is: call "
                    "it on the class; load(path) fills this one"
                )

            return refused
