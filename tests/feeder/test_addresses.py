"""Addresses as text: what is one, what follows from it, and which of them may be bound."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader.errors import ConfigError, InsecureBindError
from async_loader.feeder import addresses
from async_loader.feeder.addresses import PATH_BYTES, Address, check_bind, parse, private_folder

GOOD = [
    ("tcp://127.0.0.1:5555", Address("tcp", "127.0.0.1", 5555)),
    ("tcp://localhost:5555", Address("tcp", "127.0.0.1", 5555)),
    ("tcp://*:5555", Address("tcp", "*", 5555)),
    ("tcp://127.0.0.1:*", Address("tcp", "127.0.0.1", 0)),
    ("tcp://127.0.0.1:0", Address("tcp", "127.0.0.1", 0)),
    ("tcp://[::1]:5555", Address("tcp", "::1", 5555)),
    ("tcp://node-7.cluster:65533", Address("tcp", "node-7.cluster", 65533)),
    ("ipc:///run/x", Address("ipc", path="/run/x")),
    ("ipc:///run/a b.sock", Address("ipc", path="/run/a b.sock")),
]


@pytest.mark.parametrize(("text", "address"), GOOD)
def test_an_address_is_read(text, address):
    assert parse(text) == address
    assert parse(str(address)) == address


BAD = [
    "",
    "feeder",
    "127.0.0.1:5555",
    "udp://127.0.0.1:5",
    "inproc://x",
    "tcp://",
    "tcp://127.0.0.1",
    "tcp://127.0.0.1:",
    "tcp://:5555",
    "tcp://127.0.0.1:x",
    "tcp://127.0.0.1:-1",
    "tcp://127.0.0.1:65534",
    "tcp://127.0.0.1:99999",
    "tcp://127.0.0.1:123456",
    "tcp://127.0.0.1:٣",
    "tcp://127.0.1:5",
    "tcp://256.0.0.1:5",
    "tcp://::1:5555",
    "tcp://[::1]",
    "tcp://[::g]:5",
    "tcp://a b:5",
    "tcp://a/b:5",
    "tcp://eth0;127.0.0.1:5",
    "tcp://user@host:5",
    "ipc://",
    "ipc://x",
    "ipc://*",
    "ipc://@abstract",
    "ipc:///",
    "ipc:///a/",
    "ipc:///a//b",
    "ipc:///a/../b",
    "ipc:///a/./b",
    "ipc:///a\0b",
    "ipc:///a\nb",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="address "):
        parse(text)


@given(
    st.one_of(
        st.text(max_size=60),
        st.builds(
            "{}://{}:{}".format, st.sampled_from(["tcp", "ipc"]), st.text(), st.text(max_size=6)
        ),
    )
)
def test_any_text_is_an_address_or_a_config_error(text):
    try:
        address = parse(text)
    except ConfigError:
        return
    assert parse(str(address)) == address


@given(st.ip_addresses(), st.integers(0, 65533))
def test_every_ip_address_comes_back_and_only_loopback_is_this_machine(ip, port):
    address = parse(f"tcp://[{ip}]:{port}" if ip.version == 6 else f"tcp://{ip}:{port}")
    assert (address.host, address.port) == (str(ip), port)
    assert address.loopback == (ip.is_loopback and getattr(ip, "ipv4_mapped", None) is None)


def test_the_other_planes_follow():
    one = parse("ipc:///run/x")
    assert [str(one.control), str(one.insert), str(one.pull)] == [
        "ipc:///run/x",
        "ipc:///run/x.insert",
        "ipc:///run/x.pull",
    ]
    assert one.memory == "/run/x.memory"
    two = parse("tcp://127.0.0.1:5555")
    assert [str(two.insert), str(two.pull), two.memory] == [
        "tcp://127.0.0.1:5556",
        "tcp://127.0.0.1:5557",
        None,
    ]
    assert str(parse("tcp://127.0.0.1:*").pull) == "tcp://127.0.0.1:*"


def test_a_path_has_room_for_what_is_appended():
    longest = "/" + "x" * (PATH_BYTES - len("/.insert"))
    assert parse(f"ipc://{longest}").path == longest
    with pytest.raises(ConfigError, match="108 bytes, a socket's has 107"):
        parse(f"ipc://{longest}x")
    with pytest.raises(ConfigError, match="107 at most"):
        parse("ipc:///" + "é" * 52)


# -- who may be bound ------------------------------------------------------------------------------

FOREIGN = [
    "tcp://0.0.0.0:5555",
    "tcp://*:5555",
    "tcp://[::]:5555",
    "tcp://10.0.0.1:5555",
    "tcp://[fe80::1]:5555",
    "tcp://node7:5555",
    "tcp://eth0:5555",
    "tcp://lo:5555",
    "tcp://localhost.localdomain:5555",
    "tcp://[::ffff:127.0.0.1]:5555",
    "tcp://[::ffff:10.0.0.1]:5",
]


@pytest.mark.parametrize("text", FOREIGN)
def test_a_bind_beyond_this_machine_needs_keys_or_leave(text):
    with pytest.raises(InsecureBindError, match="async-loader keys FOLDER"):
        check_bind(parse(text))
    assert check_bind(parse(text), allow_insecure=True)
    assert not check_bind(parse(text), encrypted=True)


@pytest.mark.parametrize(
    "text",
    [
        "tcp://127.0.0.1:5",
        "tcp://127.8.9.1:5",
        "tcp://[::1]:5",
        "tcp://localhost:5",
        "ipc:///run/x",
    ],
)
def test_a_bind_on_this_machine_needs_nothing(text):
    assert not check_bind(parse(text))


# -- the default -----------------------------------------------------------------------------------


@pytest.fixture
def short():
    """A folder whose path leaves room for a socket's name, wherever the temporary folder is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_the_default_lies_in_the_runtime_folder(short, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    assert str(addresses.default()) == f"ipc://{short}/async_loader/feeder"
    assert (short / "async_loader").stat().st_mode & 0o777 == 0o700
    assert str(addresses.default("two")) == f"ipc://{short}/async_loader/two"  # the folder is found


@pytest.mark.parametrize("runtime", [None, "", "relative", "/nowhere/at/all"])
def test_without_a_runtime_folder_it_is_one_of_this_users_in_the_temporary_one(
    short, monkeypatch, runtime
):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if runtime is not None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setattr(addresses.tempfile, "gettempdir", lambda: str(short))
    assert str(addresses.default()) == f"ipc://{short}/async_loader-{os.geteuid()}/feeder"


def test_a_folder_that_others_can_enter_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="mode 750, others can enter it: chmod 700"):
        private_folder(folder)


def test_a_link_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="no folder but a link"):
        private_folder(tmp_path / "link")


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        private_folder(tmp_path / "file")


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir(mode=0o700)
    monkeypatch.setattr(addresses.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        private_folder(tmp_path / "theirs")
