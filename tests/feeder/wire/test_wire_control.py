"""Control messages: what goes in comes out, and nothing else does."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from wire_rig import HELLO, SMALL, examples, raw

from async_loader.errors import Malformed
from async_loader.feeder import wire
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.control import Control

CONTROL = {
    name: message for name, message in examples().items() if isinstance(message.body, Control)
}
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


def test_there_is_an_example_of_every_kind():
    assert {message.type for message in examples().values()} == set(wire.Type)


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


@pytest.mark.parametrize("name", CONTROL)
def test_every_truncated_body_is_refused(name):
    body = raw(CONTROL[name])[1]
    for size in range(len(body)):
        with pytest.raises(Malformed):
            said(name, body[:size])


@pytest.mark.parametrize("name", [name for name in CONTROL if isinstance(fields(name), dict)])
def test_an_unknown_field_is_refused(name):
    with pytest.raises(Malformed, match="unknown field `surprise`"):
        said(name, encode({**fields(name), "surprise": 1}))


def test_nil_may_be_left_out():
    sparse = {"name": "policy", "most": 9}
    assert said("LATEST", encode(sparse)).body == wire.Latest(name="policy", most=9)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("HELLO", {"client": b"short"}),
        ("HELLO", {"client": "0123456789abcdef"}),
        ("HELLO", {"pid": -1}),
        ("HELLO", {"pid": 2**32}),
        ("HELLO", {"pid": True}),
        ("HELLO", {"pid": 1.0}),
        ("HELLO", {"host": "h" * 257}),
        ("HELLO", {"oldest": 2, "newest": 1}),
        ("HELLO", {"token": b"x" * 257}),
        ("OPEN_WRITER", {"epoch": 2**32}),
        ("OPEN_WRITER", {"producer": b"x" * 17}),
        ("OPEN_WRITER", {"table": ""}),
        ("OPEN_WRITER", {"schema": []}),
        ("OPEN_WRITER", {"schema": [None, []]}),
        ("OPEN_READER", {"batch_size": 0}),
        ("OPEN_READER", {"rank": 1, "world_size": 1}),
        ("OPEN_READER", {"transport": "carrier pigeon"}),
        ("OPEN_READER", {"view": {"n": 0, "gamma": 0.9}}),
        ("OPEN_READER", {"view": {"n": 1, "gamma": float("nan")}}),
        ("OPEN_READER", {"view": {"n": 1}}),
        ("OPEN_READER", {"view": {}}),
        ("OPEN_READER", {"view": {"sequences": {"length": 0, "stride": 1}}}),
        ("OPEN_READER", {"view": {"sequences": {"length": 1}}}),
        ("OPEN_READER", {"view": {"hindsight": {"n": 0}}}),
        ("OPEN_READER", {"view": {"hindsight": {"strategy": "random"}}}),
        ("OPEN_READER", {"view": {"hindsight": {"compute_reward": "os.system"}}}),
        ("OPEN_READER", {"view": {"n": 1, "gamma": 0.5, "hindsight": {}}}),
        (
            "OPEN_READER",
            {"view": {"sequences": {"length": 1, "stride": 1}, "hindsight": {}}},
        ),
        ("OPEN_READER", {"max_lag": -1}),
        ("ABOUT", {"newest": 1 << 17}),
        ("OPEN_READER", {"view": {"sequences": {"length": 1, "stride": 1, "eta": 2.0}}}),
        ("OPEN_READER", {"view": {"sequences": {"length": 1, "stride": 1, "boundary": "wrap"}}}),
        (
            "OPEN_READER",
            {"view": {"n": 1, "gamma": 0.5, "sequences": {"length": 1, "stride": 1}}},
        ),
        ("OPEN_READER", {"timeout_s": float("inf")}),
        ("WELCOME", {"heartbeat_s": 0}),
        ("WELCOME", {"heartbeat_s": float("nan")}),
        ("WELCOME", {"tables": ["x"] * 5000}),
        ("ERROR", {"text": "x" * 513}),
        ("ERROR", {"code": 2**16}),
        ("LATEST", {"most": 0}),
        ("WEIGHTS", {"total_bytes": 17}),
        ("WEIGHTS", {"offset": 1}),
        ("WEIGHTS", {"specs": [["w", 99, [2, 2]]]}),
        ("WEIGHTS", {"specs": [["w", 11, [2**33, 2**31]]]}),
        ("WEIGHTS", {"specs": [["w", 11, [2**31 - 1] * 3]], "total_bytes": 0}),
        ("WEIGHTS", {"specs": [["w", 11, [2**31 - 1, 0, 2**31 - 1, 2**31 - 1]]], "total_bytes": 0}),
        ("WEIGHTS", {"specs": [["w", 11, [2]], ["w", 11, [2]]]}),
    ],
    ids=str,
)
def test_a_value_beyond_its_bounds_is_refused(name, change):
    with pytest.raises(Malformed):
        said(name, encode({**fields(name), **change}))


def test_what_a_peer_would_refuse_is_not_sent():
    with pytest.raises(Malformed, match=r"HELLO: Expected .*length"):
        wire.encode(wire.Message(msgspec.structs.replace(HELLO, host="h" * 999)))
    with pytest.raises(Malformed, match="ABOUT_REPLY cannot be sent"):
        wire.encode(about(object()))


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


def test_what_follows_the_value_is_refused():
    with pytest.raises(Malformed, match="END"):
        said("END", raw(CONTROL["END"])[1] + b"\xc0\xc0")


def test_text_that_is_no_utf8_is_refused():
    with pytest.raises(Malformed):
        said("STATUS_REPLY", b"\x91\x81\xa1x\xa2\xff\xfe")


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


def test_weights_come_with_bytes_and_nothing_newer_without():
    front, body, part = raw(CONTROL["WEIGHTS"])
    assert wire.decode([front, body, part]).data == part
    nothing = wire.decode(raw(CONTROL["WEIGHTS, none newer"]))
    assert nothing.data is None
    assert nothing.body.version == 6
    with pytest.raises(Malformed, match="has 0 data frames, it takes 1"):
        wire.decode([front, body])
    with pytest.raises(Malformed, match="20 bytes at offset 0 of weights that have 16"):
        wire.decode([front, body, bytes(20)])
    with pytest.raises(Malformed, match="has 0 data frames"):
        wire.encode(wire.Message(examples()["PUBLISH"].body))


def test_weights_travel_in_parts():
    whole = np.arange(10, dtype=np.float32).tobytes()
    specs = (wire.TensorSpec("w", 11, (10,)),)
    parts = [
        wire.Message(
            wire.Weights(name="p", version=3, total_bytes=40, offset=at, specs=() if at else specs),
            data=whole[at : at + 16],
        )
        for at in (0, 16, 32)
    ]
    read = [wire.decode(raw(part)) for part in parts]
    assert b"".join(part.data for part in read) == whole
    assert [part.body.offset for part in read] == [0, 16, 32]


def test_tensors_come_back_as_they_were():
    tensors = {
        "odd": np.arange(3, dtype=np.uint8),
        "turned": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "scalar": np.array(1.5),
        "none": np.empty((0, 4), np.float16),
        "z": np.array([1j]),
    }
    specs, whole = wire.specs_of(tensors), wire.bytes_of(tensors)
    message = wire.Message(
        wire.Publish(name="p", version=1, total_bytes=len(whole), specs=specs), data=whole
    )
    read = wire.decode(raw(message))
    after = wire.tensors_of(read.body.specs, read.data)
    assert list(after) == list(tensors)
    for name, value in tensors.items():
        assert after[name].dtype == value.dtype
        assert after[name].flags.aligned
        np.testing.assert_array_equal(after[name], value)
    with pytest.raises(Malformed, match="read on from there"):
        wire.tensors_of(specs, whole[:-1])


def test_a_receiver_may_take_less_than_the_format_allows():
    with pytest.raises(Malformed, match="1024 are allowed"):
        wire.decode(
            raw(about("y" * 1024)),
            wire.Limits(control_bytes=1024),
        )


def test_an_error_of_a_code_that_came_later_is_read():
    body = said("ERROR", encode({**fields("ERROR"), "code": 999})).body
    assert body.code == 999


def test_a_reply_belongs_to_its_request():
    request = wire.decode(raw(examples()["STATUS"]))
    answer = wire.decode(raw(request.reply(wire.StatusReply({}))))
    assert (answer.session, answer.sequence, answer.number) == (
        request.session,
        request.sequence,
        request.number,
    )
