"""The 36 bytes that every message begins with."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from wire_rig import examples, raw, reheaded

from async_loader.errors import Malformed
from async_loader.feeder import wire

PING = raw(examples()["PING"])


def patched(frame: bytes, at: int, value: int) -> bytes:
    """With another byte."""
    return frame[:at] + bytes((value,)) + frame[at + 1 :]


@pytest.mark.parametrize("frame", [b"", b"x" * 36, bytes(35), PING[0] * 2])
def test_a_first_frame_that_is_no_header_is_refused(frame):
    with pytest.raises(Malformed, match="another protocol"):
        wire.decode([frame, PING[1]])


@pytest.mark.parametrize("version", [0, wire.VERSION + 1, 255])
def test_an_unknown_version_is_refused_and_the_answer_says_what_is_understood(version):
    frames = reheaded(raw(examples()["STATUS"]), sequence=77)
    with pytest.raises(Malformed, match=f"version {version} .*update the older side") as caught:
        wire.decode([patched(frames[0], 4, version), frames[1]])
    answer = wire.decode(wire.encode(wire.refuse(caught.value)))
    assert answer.type is wire.Type.ERROR
    assert (answer.session, answer.sequence) == (81, 77)
    assert (answer.body.code, answer.body.expected, answer.body.retryable) == (
        wire.ErrorCode.VERSION,
        wire.VERSION,
        False,
    )


@pytest.mark.parametrize("flag", [0x01, 0x80])
def test_a_flag_that_is_not_known_is_refused(flag):
    with pytest.raises(Malformed, match=r"PING has flags .*, which are not known") as caught:
        wire.decode([patched(PING[0], 6, flag), PING[1]])
    assert caught.value.code == wire.ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(("at", "value"), [(4, 9), (6, 0xFF), (7, 200)])
def test_an_error_is_read_whatever_its_sender_speaks(at, value):
    front, body = raw(examples()["ERROR"])
    message = wire.decode([patched(front, at, value), body])
    assert message.body == examples()["ERROR"].body


WIRE = Path(wire.__file__).parent
WITHOUT = {
    "socket",
    "ssl",
    "select",
    "selectors",
    "time",
    "datetime",
    "threading",
    "asyncio",
    "multiprocessing",
    "subprocess",
    "os",
}
WITHOUT |= {
    "pickle",
    "marshal",
    "shelve",
    "cloudpickle",
    "torch",
    "zmq",
    "numba",
    "importlib",
    "io",
}


def test_the_wire_has_no_socket_no_clock_no_thread_and_unpickles_nothing():
    for path in WIRE.glob("*.py"):
        code = ast.parse(path.read_text())
        found = {node.module for node in ast.walk(code) if isinstance(node, ast.ImportFrom)}
        found |= {
            name.name
            for node in ast.walk(code)
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert not {name.split(".")[0] for name in found} & WITHOUT, path.name
        called = {
            node.func.id
            for node in ast.walk(code)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & {"eval", "exec", "compile", "open", "__import__", "namedtuple"}, (
            path.name
        )
