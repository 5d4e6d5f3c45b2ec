"""What the IO thread sees of a writer or a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from async_loader.errors import AsyncLoaderError, ConfigError, Malformed, SchemaError
from async_loader.feeder.wire import Message, OpenReader, OpenWriter, encode

R = TypeVar("R")
Failure = Callable[[], AsyncLoaderError | OSError]
"""Makes the error to raise; a new one for each thread."""


@dataclass(slots=True)
class Request:
    """The open or close request of a channel: it is sent once, as its connection loses nothing.

    Attributes
    ----------
    sequence : int
        Of the one that waits for its answer; 0: none does.
    at : float
        None is sent before.
    """

    sequence: int = 0
    at: float = 0.0

    def is_answer(self, message: Message) -> bool:
        """Return whether a message is what this waits for."""
        return 0 < self.sequence == message.sequence


class Channel(Protocol):
    """A writer or a reader, as the IO thread sees it. Called by that thread only."""

    number: int

    def begin(self) -> None:
        """Open again: there is a new session."""

    def step(self, now: float) -> float | None:
        """Do what is due; return when the next thing is."""

    def take(self, message: Message, now: float) -> None:
        """Handle a message for this channel."""

    def end(self, failure: Failure) -> None:
        """Fail all waiting threads: the connection is over."""


def failure_of(error: AsyncLoaderError) -> Failure:
    """Return what makes an error of this kind and text."""
    kind, text = type(error), str(error)
    return lambda: kind(text)


def guarded(channel: Channel, call: Callable[..., R], *args: Any) -> R | None:
    """Call a method of a channel: an error that it raises ends this channel, and no other one."""
    try:
        return call(*args)
    except AsyncLoaderError as error:
        channel.end(failure_of(error))
        return None


def check_opener(body: OpenWriter | OpenReader) -> None:
    """Check a request that opens a channel as its peer does, in the thread of the caller.

    Raises SchemaError for one with a schema, else ConfigError.
    """
    try:
        encode(Message(body))
    except Malformed as error:
        text = f"table {body.table!r}: {error}"
        if isinstance(body, OpenWriter):
            raise SchemaError(f"{text}: join fields, or give them shorter names") from None
        raise ConfigError(text) from None
