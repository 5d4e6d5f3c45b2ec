"""The error for data that cannot be imported, and the place in the data that it names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from async_loader.errors import AsyncLoaderError, SchemaError


class BadData(SchemaError):
    """Data that a table cannot take. The message names the file, the episode, the field and the
    remedy.

    Attributes
    ----------
    file : str
        The file, folder or data set; "" for episodes of an iterable.
    episode : int | None
        Its number in the data, from 0.
    field : str | None
        Its name in a table, with dots where it is nested.
    """

    def __init__(
        self, message: str, file: str = "", episode: int | None = None, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.file, self.episode, self.field = file, episode, field


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the data: a file, and an episode of it.

    Attributes
    ----------
    file : str
        "" for episodes of an iterable.
    episode : int | None
    """

    file: str = ""
    episode: int | None = None

    def error(self, field: str | None, text: str, about: str | None = None) -> BadData:
        """Return the error for a field here; ``text`` says the fact and the remedy, and names the
        field ``about``.
        """
        parts = [
            self.file,
            "" if self.episode is None else f"episode {self.episode}",
            "" if field is None else f"field {field!r}",
        ]
        where = ", ".join(part for part in parts if part)
        return BadData(
            f"{where}: {text}" if where else text, self.file, self.episode, field or about
        )

    @contextlib.contextmanager
    def reading(self, kind: str) -> Iterator[None]:
        """Have what a library raises for damage be BadData of this file, in the block."""
        try:
            yield
        except AsyncLoaderError:
            raise
        except Exception as error:  # each library has others, also for a type it does not know
            raise self.error(
                None,
                f"it cannot be read as {kind} ({error}): it is missing, cut off, damaged or of "
                "another format; correct the path, or copy or download it again",
            ) from None

    def misfit(self, error: SchemaError) -> BadData:
        """Return the error for data here that a table has refused."""
        named = re.search(r"field '([^']*)'", str(error))
        return self.error(None, str(error), named[1] if named else None)
