"""Control messages: what goes in comes out, and nothing else does."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass

import msgspec
import pytest
from wire_rig import SMALL, examples, raw

from async_loader.errors import Malformed
from async_loader.feeder import wire
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.control import Control

encode = msgspec.msgpack.encode


def said(name: str, body: bytes) -> wire.Message:
    """What a message of this kind with this body is taken for."""
    frames = raw(examples()[name])
    return wire.decode([frames[0], body, *frames[2:]])


def fields(name: str) -> dict[str, object]:
    return msgspec.msgpack.decode(raw(examples()[name])[1])


def about(value: object) -> wire.Message:
    body = examples()["ABOUT_REPLY"].body
    return wire.Message(msgspec.structs.replace(body, stats={"x": value}))


@pytest.mark.parametrize("name", examples())
def test_a_message_comes_back_as_it_was(name):
    message = examples()[name]
    frames = raw(message)
    back = wire.decode(frames)
    assert raw(back) == frames
    for said in ("session", "sequence", "number", "schema"):
        assert getattr(back, said) == getattr(message, said)
    if isinstance(message.body, Control):
        assert back.body == message.body


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("HELLO", {"client": b"short"}),
        ("HELLO", {"pid": -1}),
        ("HELLO", {"pid": True}),
        ("HELLO", {"host": "h" * 257}),
        ("HELLO", {"token": b"x" * 257}),
        ("OPEN_WRITER", {"producer": b"x" * 17}),
        ("OPEN_WRITER", {"schema": []}),
        ("OPEN_READER", {"batch_size": 0}),
        ("OPEN_READER", {"transport": "carrier pigeon"}),
        ("OPEN_READER", {"view": "sequences"}),
        ("OPEN_READER", {"view": dict.fromkeys(map(str, range(17)))}),
        ("OPEN_READER", {"max_lag": -1}),
        ("WELCOME", {"heartbeat_s": 0}),
        ("WELCOME", {"tables": ["x"] * 5000}),
        ("ERROR", {"code": 2**16}),
        ("WEIGHTS", {"total_bytes": 17}),
        ("WEIGHTS", {"specs": [["w", 99, [2, 2]]]}),
        ("WEIGHTS", {"specs": [["w", 11, [2**31 - 1] * 3]], "total_bytes": 0}),
        ("WEIGHTS", {"specs": [["w", 11, [2]], ["w", 11, [2]]]}),
    ],
    ids=str,
)
def test_a_value_beyond_its_bounds_is_refused(name, change):
    with pytest.raises(Malformed):
        said(name, encode({**fields(name), **change}))


def test_a_control_body_is_bounded():
    text = "y" * codes.CONTROL_BYTES
    with pytest.raises(
        Malformed, match=r"ABOUT_REPLY has a body of \d+ bytes, 65536 are allowed"
    ) as caught:
        said("ABOUT_REPLY", encode({"stats": {"x": text}}))
    assert caught.value.code == wire.ErrorCode.TOO_LARGE
    with pytest.raises(Malformed, match="65536 are allowed"):
        wire.encode(about(text))
    status = {"x": text}
    assert wire.decode(wire.encode(wire.Message(wire.StatusReply(status)))).body.status == status


@pytest.mark.parametrize(
    "body",
    [b"\x91" * 60000 + b"\xc0", b"\x91\x81\xa6status" + b"\x81\xa1x" * 15000 + b"\xc0"],
    ids=["array", "map"],
)
def test_deep_nesting_is_refused_and_not_descended_into(body):
    with pytest.raises(Malformed, match="STATUS_REPLY"):
        said("STATUS_REPLY", body)


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\xa1x",
        b"\xdb\xff\xff\xff\xffx",
        b"\xc6\xff\xff\xff\xffx",
    ],
)
def test_lengths_that_lie_are_refused(body):
    with pytest.raises(Malformed, match="STATUS_REPLY"):
        said("STATUS_REPLY", body)


@dataclass
class Bomb:
    path: str

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_has_no_effect_wherever_it_stands(tmp_path):
    marker = tmp_path / "exploded"
    bombs = [
        pickle.dumps(Bomb(str(marker)), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    for bomb in bombs:
        for name, message in examples().items():
            frames = raw(message)
            for at in range(len(frames)):
                planted = [*frames[:at], bomb, *frames[at + 1 :]]
                try:
                    body = wire.decode(planted).body
                    if isinstance(body, wire.Insert):
                        wire.read_insert(body, wire.RowLayout.of(SMALL))
                except Malformed:
                    continue
                # What it can be is bytes in a place for bytes, or rows that no check has looked at.
                assert isinstance(body, wire.Weights | wire.Batch | wire.Got), name
    assert not marker.exists()
    pickle.loads(bombs[-1])
    assert marker.exists(), "the bombs were duds"
