"""The 36 bytes that every message begins with."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from wire_rig import examples, raw, reheaded

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder import wire

PING = raw(examples()["PING"])


def patched(frame: bytes, at: int, value: int) -> bytes:
    """With another byte."""
    return frame[:at] + bytes((value,)) + frame[at + 1 :]


@pytest.mark.parametrize("size", [0, 1, 35, 37, 72, 1 << 20])
def test_a_header_of_another_length_is_refused(size):
    frame = (PING[0] * (size // 36 + 1))[:size]
    with pytest.raises(Malformed, match=rf"first frame holds {size} bytes, a header 36"):
        wire.decode([frame])


def test_no_frames_at_all_are_refused():
    with pytest.raises(Malformed, match="first frame holds 0 bytes"):
        wire.decode([])


def test_another_protocol_is_named():
    with pytest.raises(Malformed, match="begins with b'GET '"):
        wire.decode([b"GET / HTTP/1.1".ljust(36)])


@pytest.mark.parametrize("version", [0, wire.VERSION + 1, 255])
def test_an_unknown_version_is_refused_and_the_answer_says_what_is_understood(version):
    frames = reheaded(raw(examples()["STATUS"]), sequence=77)
    with pytest.raises(Malformed, match=f"version {version} .*update the older side") as caught:
        wire.decode([patched(frames[0], 4, version), *frames[1:]])
    answer = wire.decode(wire.encode(wire.refuse(caught.value)))
    assert answer.type is wire.Type.ERROR
    assert (answer.session, answer.sequence) == (81, 77)
    assert (answer.body.code, answer.body.expected, answer.body.retryable) == (
        wire.ErrorCode.VERSION,
        wire.VERSION,
        False,
    )


@pytest.mark.parametrize("flag", [0x01, 0x02, 0x10, 0x80])
def test_a_flag_that_is_not_known_is_refused(flag):
    with pytest.raises(Malformed, match=r"PING has flags .*, which are not known") as caught:
        wire.decode([patched(PING[0], 6, flag)])
    assert caught.value.code == wire.ErrorCode.UNSUPPORTED


def test_a_type_of_later_versions_is_refused_as_unsupported():
    with pytest.raises(Malformed, match="there is no message of type 200") as caught:
        wire.decode([patched(PING[0], 5, 200)])
    assert (caught.value.code, caught.value.type) == (wire.ErrorCode.UNSUPPORTED, 200)


def test_reserved_bytes_are_not_looked_at():
    assert wire.decode([patched(PING[0], 7, 9), PING[1]]).type is wire.Type.PING


@pytest.mark.parametrize(("at", "value"), [(4, 0), (4, 9), (6, 0xFF), (7, 200)])
def test_an_error_is_read_whatever_its_sender_speaks(at, value):
    front, body = raw(examples()["ERROR"])
    message = wire.decode([patched(front, at, value), body])
    assert message.body == examples()["ERROR"].body


def test_an_error_is_never_answered():
    front, _ = raw(examples()["ERROR"])
    with pytest.raises(Malformed) as caught:
        wire.decode([front, b"\xc1"])
    assert wire.refuse(caught.value) is None


def test_a_malformed_message_is_an_error_of_this_package_and_survives_a_queue():
    import copy

    error = copy.copy(Malformed("what", wire.ErrorCode.GAP, 3))
    assert isinstance(error, AsyncLoaderError)
    assert (str(error), error.code, error.expected) == ("what", wire.ErrorCode.GAP, 3)


def test_what_is_worth_another_try():
    assert {code for code in wire.ErrorCode if wire.worth_retrying(code)} == {
        wire.ErrorCode[name]
        for name in [
            "UNKNOWN_SESSION",
            "UNKNOWN_WRITER",
            "UNKNOWN_READER",
            "GAP",
            "LIMIT",
            "DRAINING",
            "TIMEOUT",
        ]
    }


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


def test_the_wire_loads_neither_torch_nor_zeromq_nor_compiled_kernels():
    code = (
        "import sys, async_loader.feeder.wire; assert not {'torch', 'zmq', 'numba'} & "
        "set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
