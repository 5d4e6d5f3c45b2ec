"""The CURVE mechanism of a server (CurveZMQ, RFC 26), by PyNaCl. The only module that imports it.

Names as in the RFC: C, c are the client's keys for good, C', c' those of this connection; S, s and
S', s' the server's.

NOTE [cookie]. A server may put S' and C' into the cookie, and forget them until INITIATE brings
them back. A connection is there anyway: the cookie is random, and only compared.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable
from typing import Any

from nacl import bindings
from nacl.exceptions import CryptoError

from async_loader.feeder.zmtp import frames
from async_loader.feeder.zmtp.connection import Null
from async_loader.feeder.zmtp.frames import COMMAND, MORE, Buffer, ProtocolError

_KEY, _MAC = 32, 16
_HELLO, _COOKIE, _INITIATE = 200, 96, 257
_MESSAGE = b"\7MESSAGE"
_BEFORE = len(_MESSAGE) + 8
_NONCE = struct.Struct(">Q")
_MOST_NONCE = 2**64 - 1
_INNER_MORE, _INNER_COMMAND = 1, 2
# Without padding where PyNaCl has that: one copy of a message less.
_box: Any = getattr(bindings, "crypto_box_easy_afternm", bindings.crypto_box_afternm)
_unbox: Any = getattr(bindings, "crypto_box_open_easy_afternm", bindings.crypto_box_open_afternm)


class Curve(Null):
    """See `Null`.

    Parameters
    ----------
    public, secret : bytes
        S and s.
    user_of : callable
        Returns the user of a client's public key; ``None``: the key is unknown.
    """

    name = b"CURVE"
    overhead = _BEFORE + 1 + _MAC

    def __init__(
        self, public: bytes, secret: bytes, user_of: Callable[[bytes], str | None]
    ) -> None:
        self._public, self._secret, self._user_of = public, secret, user_of
        super().__init__()
        self._step = self._hello
        self._client = self._own_secret = self._key = self._cookie = b""
        self._heard = self._said = 0

    def begin(self) -> bytes:
        return b""

    def step(self, body: Buffer) -> bytes:
        return self._step(bytes(body))

    # -- the handshake ---------------------------------------------------------------------------

    def _hello(self, body: bytes) -> bytes:
        """HELLO: C' and a box that proves c'. Answered with WELCOME."""
        if len(body) != _HELLO or not body.startswith(b"\5HELLO\1\0"):
            raise ProtocolError("the handshake has no HELLO of CurveZMQ 1.0 where it is due")
        self._client = body[80:112]
        shared = _shared(self._client, self._secret)
        nonce = self._nonce(body[112:120])
        if any(_opened(body[120:], b"CurveZMQHELLO---" + nonce, shared)):
            raise ProtocolError("the signature of HELLO is not made of zeros")
        own_public, self._own_secret = bindings.crypto_box_keypair()
        self._key = _shared(self._client, self._own_secret)
        self._cookie, nonce = os.urandom(_COOKIE), os.urandom(16)
        welcome: bytes = _box(own_public + self._cookie, b"WELCOME-" + nonce, shared)
        self._step = self._initiate
        return frames.command(b"WELCOME", nonce + welcome)

    def _initiate(self, body: bytes) -> bytes:
        """INITIATE: C, and a vouch of c for C'.

        Answered with READY, or ERROR for a key that is unknown.
        """
        if len(body) < _INITIATE or not body.startswith(b"\10INITIATE"):
            raise ProtocolError("the handshake has no INITIATE where it is due")
        if not hmac.compare_digest(body[9 : 9 + _COOKIE], self._cookie):
            raise ProtocolError("the cookie is another than that of WELCOME")
        nonce = self._nonce(body[105:113])
        plain = _opened(body[113:], b"CurveZMQINITIATE" + nonce, self._key)
        client, vouch_nonce, vouch = plain[:32], plain[32:48], plain[48:128]
        vouched = _opened(vouch, b"VOUCH---" + vouch_nonce, _shared(client, self._own_secret))
        if not hmac.compare_digest(vouched, self._client + self._public):
            raise ProtocolError("the client's key does not vouch for that of the connection")
        self.user = self._user_of(client)
        if self.user is None:
            raise ProtocolError("a client's key is unknown", frames.error(b"400"))
        self._cookie = self._own_secret = b""
        self.ready, self._step = True, self._late
        nonce = self._next()
        box: bytes = _box(frames.OWN_METADATA, b"CurveZMQREADY---" + nonce, self._key)
        return frames.command(b"READY", nonce + box)

    def _late(self, body: bytes) -> bytes:
        raise ProtocolError("the handshake is over")

    # -- frames ----------------------------------------------------------------------------------

    def open(self, flags: int, body: Buffer) -> tuple[int, Buffer]:
        """MESSAGE: a box of the frame, its flags before it."""
        if flags & MORE or len(body) < _BEFORE + 1 + _MAC or body[: len(_MESSAGE)] != _MESSAGE:
            raise ProtocolError("a frame is no MESSAGE of CurveZMQ")
        nonce = self._nonce(bytes(body[len(_MESSAGE) : _BEFORE]))
        plain = _opened(bytes(body[_BEFORE:]), b"CurveZMQMESSAGEC" + nonce, self._key)
        inner = plain[0]
        if inner & ~(_INNER_MORE | _INNER_COMMAND) or inner == _INNER_MORE | _INNER_COMMAND:
            raise ProtocolError(f"a MESSAGE has flags {inner:#04x}")
        flags = COMMAND if inner & _INNER_COMMAND else MORE if inner & _INNER_MORE else 0
        return flags, memoryview(bytearray(plain))[1:]

    def seal(self, frame: Buffer, nbytes: int, flags: int) -> tuple[bytes, Buffer]:
        inner = (_INNER_MORE if flags & MORE else 0) | (_INNER_COMMAND if flags & COMMAND else 0)
        nonce = self._next()
        plain = b"".join((bytes((inner,)), frame))
        box = _box(plain, b"CurveZMQMESSAGES" + nonce, self._key)
        body = b"".join((_MESSAGE, nonce, box))
        return frames.head(len(body)), body

    def _nonce(self, nonce: bytes) -> bytes:
        """Return the nonce of a received command, which is larger than any before."""
        (number,) = _NONCE.unpack(nonce)
        if number <= self._heard:
            raise ProtocolError("a nonce was used again")
        self._heard = number
        return nonce

    def _next(self) -> bytes:
        if self._said >= _MOST_NONCE:
            raise ProtocolError("all nonces were used")
        self._said += 1
        return _NONCE.pack(self._said)


def _shared(public: bytes, secret: bytes) -> bytes:
    try:
        shared: bytes = bindings.crypto_box_beforenm(public, secret)
    except CryptoError:  # a point of low order
        raise ProtocolError("a public key is not valid") from None
    return shared


def _opened(box: bytes, nonce: bytes, key: bytes) -> bytes:
    try:
        plain: bytes = _unbox(box, nonce, key)
    except CryptoError:
        raise ProtocolError("a box cannot be opened") from None
    return plain
