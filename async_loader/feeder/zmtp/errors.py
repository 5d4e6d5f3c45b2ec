"""The error for input that ZMTP does not allow."""

from __future__ import annotations


class ProtocolError(Exception):
    """The connection cannot go on.

    Attributes
    ----------
    answer : bytes
        Sent to the peer before the connection ends; may be empty.
    """

    def __init__(self, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.answer = answer
