"""What a writer in another process knows of its table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """What a writer knows of the table, apart from the memory of its rows.

    Attributes
    ----------
    number : int
        Of the writer.
    owner : int
        The pid of the table's process.
    prioritized, given : bool
        Whether anything there goes by priorities; whether every step needs one.
    sampler, remover : str
        For messages.
    """

    number: int
    owner: int
    prioritized: bool
    given: bool
    sampler: str
    remover: str
