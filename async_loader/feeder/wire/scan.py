"""Checks msgpack before it is decoded: refuses what msgspec would accept silently.

msgspec keeps the last of two equal keys, turns extension types into objects, and descends as deep
as Python allows.
"""

from __future__ import annotations

from async_loader.errors import Malformed
from async_loader.feeder.wire import bounds

_INTEGERS = {first + i: 1 + (1 << i) for first in (0xCC, 0xD0) for i in range(4)}
_SCALARS = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, **_INTEGERS}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Size of the length of bin and str, in bytes."""
_COUNTED = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Size of the count of arrays and maps, in bytes."""


def _whole(op: int) -> int:
    if op < 0x80 or op >= 0xE0:
        return 1
    return 1 + (op & 0x1F) if 0xA0 <= op < 0xC0 else _SCALARS.get(op, 0)


_WHOLE = [_whole(op) for op in range(256)]
"""Size of a value whose first byte tells it; 0 for all others."""


def check(data: bytes) -> None:
    """Check for exactly one msgpack value, whose maps have unique text keys. About 0.15 us a value.

    Raises
    ------
    Malformed
    """
    left: list[int] = [1]  # of each open container: items to come,
    keys: list[set[bytes] | None] = [None]  # and the keys so far if it is a map
    at = 0
    try:
        while left:
            count = left[-1]
            if not count:
                left.pop()
                keys.pop()
                continue
            left[-1] = count - 1
            seen = keys[-1]
            if seen is not None and not count & 1:
                at = _key(data, at, seen)
            elif size := _WHOLE[data[at]]:
                at += size
            else:
                at, count, is_map = _step(data, at)
                left.append(count)
                keys.append(set() if is_map else None)
                if len(left) > bounds.NESTING:
                    raise Malformed(
                        f"msgpack: containers are nested more than {bounds.NESTING} deep: send "
                        "something flatter"
                    )
    except IndexError:
        at = len(data) + 1
    if at > len(data):
        raise Malformed(f"msgpack: cut off after {len(data)} bytes")
    if at < len(data):
        raise Malformed(
            f"msgpack: {len(data) - at} bytes follow the value: send one value in a frame"
        )


def _step(data: bytes, at: int) -> tuple[int, int, bool]:
    """Step over a value, or the head of a container: return position, item count, whether a map."""
    op = data[at]
    at += 1
    if op in _SIZED:
        return at + _SIZED[op] + int.from_bytes(data[at : at + _SIZED[op]], "big"), 0, False
    if 0x80 <= op < 0xA0:
        width, count = 0, op & 0x0F
    elif op in _COUNTED:
        width = _COUNTED[op]
        count = int.from_bytes(data[at : at + width], "big")
    else:
        raise Malformed(
            f"msgpack: byte {at - 1} is {op:#x}, an extension type or none: only plain values "
            "travel"
        )
    is_map = op < 0x90 or op >= 0xDE
    at, count = at + width, count * 2 if is_map else count
    if count > len(data) - at:
        raise Malformed(
            f"msgpack: {count} items are said to follow byte {at}, {len(data) - at} bytes do"
        )
    return at, count, is_map


def _key(data: bytes, at: int, seen: set[bytes]) -> int:
    """Step over a key. Raises Malformed unless it is text that was not seen before."""
    op = data[at]
    if 0xA0 <= op < 0xC0:
        start, size = at + 1, op & 0x1F
    elif 0xD9 <= op <= 0xDB:
        start = at + 1 + _SIZED[op]
        size = int.from_bytes(data[at + 1 : start], "big")
    else:
        raise Malformed("msgpack: a key of a map is not text: name what you send")
    text = data[start : start + size]
    if text in seen:
        raise Malformed(f"msgpack: key {text[:40]!r} is there twice: send it once")
    seen.add(text)
    return start + size
