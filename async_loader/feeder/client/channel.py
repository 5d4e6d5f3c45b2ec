"""What the IO thread sees of a writer or a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from async_loader.errors import AsyncLoaderError, ConfigError, Malformed, SchemaError
from async_loader.feeder.wire import Message, OpenReader, OpenWriter, encode
from async_loader.feeder.wire.codes import CONTROL_BYTES

R = TypeVar("R")
Failure = Callable[[], AsyncLoaderError]
"""Makes the error to raise; a new one for each thread."""
ASK_AGAIN_S = 5.0
"""After this long an open or close request without an answer is sent again.

Its connection may be another one by now.
"""


@dataclass(slots=True)
class Request:
    """An open or close request of a channel, and when it is sent again.

    Attributes
    ----------
    sequence : int
        Of the request that waits for its answer; 0: none.
    again_at : float | None
        ``None``: no answer is missing.
    """

    sequence: int = 0
    again_at: float | None = None

    def sent(self, sequence: int, again_at: float) -> None:
        """Note a request."""
        self.sequence, self.again_at = sequence, again_at

    def done(self) -> None:
        """Stop asking."""
        self.again_at = None

    def is_answer(self, message: Message) -> bool:
        """Return whether a message answers the newest request."""
        return self.again_at is not None and message.sequence == self.sequence


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

    Raises
    ------
    SchemaError
        The schema is larger than a message may be.
    ConfigError
    """
    try:
        encode(Message(body))
    except Malformed as error:
        size = len(msgspec.msgpack.encode(body))
        spec = body.schema if isinstance(body, OpenWriter) else None
        if spec is None or size <= CONTROL_BYTES:
            raise ConfigError(f"table {body.table!r}: {error}") from None
        text = f"a schema of {len(spec.fields):,} fields takes {size:,} bytes as a message"
        raise SchemaError(
            f"table {body.table!r}: {text}, {CONTROL_BYTES:,} are allowed: join fields of one "
            "dtype into arrays, or give them shorter names"
        ) from None
