"""A look at msgpack before it is decoded: what a decoder would take silently is refused. Builds nothing.

msgspec keeps the last of two equal keys, turns extension types into objects and descends as deep as Python allows.
"""

from __future__ import annotations

from async_loader.errors import Malformed
from async_loader.feeder.wire import bounds

_INTEGERS = {first + i: 1 << i for first in (0xCC, 0xD0) for i in range(4)}
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, **_INTEGERS}
"""Bytes after the opcode: nil, booleans, floats, integers."""
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length of bin and str."""
_COUNTED = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Bytes of the count of arrays and maps."""


class _Open:
    """A container whose items are being read; ``keys`` only for maps, where every other item is a key."""

    __slots__ = ("keys", "left")

    def __init__(self, left: int, keys: set[bytes] | None) -> None:
        self.left = left
        self.keys = keys


def check(data: bytes) -> None:
    """One msgpack value and no more; maps have different keys, all of them text. O(bytes), about 0.2 us a value.

    Raises
    ------
    Malformed
    """
    stack: list[_Open] = []
    at = 0
    while True:
        expects_key = bool(stack) and stack[-1].keys is not None and stack[-1].left % 2 == 0
        start = at
        at, count, is_map, is_text = _step(data, at)
        if expects_key:
            _new_key(data[start:at], is_text, stack[-1])
        if stack:
            stack[-1].left -= 1
        if count > len(data) - at:
            raise Malformed(f"msgpack: {count} items are said to follow byte {at}, {len(data) - at} bytes do")
        if count:
            stack.append(_Open(count, set() if is_map else None))
            if len(stack) > bounds.NESTING:
                raise Malformed(f"msgpack: containers are nested more than {bounds.NESTING} deep: send something flatter")
        while stack and not stack[-1].left:
            stack.pop()
        if not stack:
            break
    if at != len(data):
        raise Malformed(f"msgpack: {len(data) - at} bytes follow the value: send one value in a frame")


def _step(data: bytes, at: int) -> tuple[int, int, bool, bool]:
    """Past one scalar or the front of one container: where, how many items follow, whether it is a map, whether it is text."""
    if at >= len(data):
        raise Malformed(f"msgpack: cut off after {len(data)} bytes")
    op = data[at]
    at += 1
    count, is_map, is_text = 0, False, False
    if op < 0x80 or op >= 0xE0:
        pass
    elif op < 0x90:
        count, is_map = (op & 0x0F) * 2, True
    elif op < 0xA0:
        count = op & 0x0F
    elif op < 0xC0:
        at, is_text = at + (op & 0x1F), True
    elif op in _FIXED:
        at += _FIXED[op]
    elif op in _SIZED:
        width = _SIZED[op]
        at, is_text = at + width + int.from_bytes(data[at : at + width], "big"), op >= 0xD9
    elif op in _COUNTED:
        width, is_map = _COUNTED[op], op >= 0xDE
        count = int.from_bytes(data[at : at + width], "big") * (2 if is_map else 1)
        at += width
    else:
        raise Malformed(f"msgpack: byte {at - 1} is {op:#x}, an extension type or none: only plain values travel")
    if at > len(data):
        raise Malformed(f"msgpack: cut off after {len(data)} bytes, a value ends at {at}")
    return at, count, is_map, is_text


def _new_key(key: bytes, is_text: bool, within: _Open) -> None:
    assert within.keys is not None
    if not is_text:
        raise Malformed("msgpack: a key of a map is not text: name what you send")
    text = key[1 + _SIZED.get(key[0], 0) :]  # the same text may be sent with a longer length
    if text in within.keys:
        raise Malformed(f"msgpack: key {text[:40]!r} is there twice: send it once")
    within.keys.add(text)
