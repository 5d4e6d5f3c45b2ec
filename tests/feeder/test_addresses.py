"""Addresses as text: what is one, what follows from it, and which of them may be bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader.errors import ConfigError, InsecureBindError
from async_loader.feeder.addresses import Address, check_bind, parse, private_folder

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


# -- the default -----------------------------------------------------------------------------------


def test_a_folder_that_others_can_enter_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="mode 750, others can get at it: chmod 700"):
        private_folder(folder)
