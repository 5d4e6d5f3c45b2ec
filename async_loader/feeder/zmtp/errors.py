"""What a peer did that ZMTP does not allow."""

from __future__ import annotations


class ProtocolError(Exception):
    """The connection cannot go on.

    Attributes
    ----------
    answer : bytes
        What the peer is sent before the connection ends; empty: nothing.
    """

    def __init__(self, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.answer = answer
