"""The client of a table, and the feeder of a client, as these see them: two Protocols."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, TypeVar

from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.feeder.client.writer_rows import WriterOptions
from async_loader.schema import SchemaLike

W = TypeVar("W", bound=RemoteWriter)


class Client(Protocol):
    """What a table asks of its client; `client.Client` has it."""

    @property
    def owns_feeder(self) -> bool:
        """Whether the feeder was started for this client."""

    def _open_writer(
        self,
        kind: type[W],
        table: str,
        stream: Hashable | None,
        schema: SchemaLike | None,
        options: WriterOptions,
    ) -> W:
        """Return a new writer, which the client closes at its end."""

    def _has_read(self, channel: ReaderChannel, /) -> None:
        """Count what a reader does."""


class OwnFeeder(Protocol):
    """A feeder that was started for one client."""

    def close(self) -> None:
        """Let it drain, and end it."""
