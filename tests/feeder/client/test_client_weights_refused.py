"""Weights that cannot be sent are refused before anything is, with fact, number and remedy."""

from __future__ import annotations

import numpy as np
import pytest
from test_client_shared import replay, serving

from async_loader.errors import ConfigError, SchemaError

ONE = {"w": np.ones(1)}
WRONG_NAMES = {
    5: "5 is int: give text",
    None: "None is NoneType: give text",
    b"policy": "b'policy' is bytes: give text",
    "": "'' has 0 characters: give 1 to 256",
    "x" * 257: "has 257 characters: give 1 to 256",
    "a\ud800": "character 1 has no UTF-8 form: give text without surrogates",
}


@pytest.fixture
def client(tmp_path):
    with serving(tmp_path, replay()) as (_, client):
        yield client


@pytest.fixture(autouse=True)
def nothing_is_sent(client):
    before = client.status()
    yield
    after = client.status()
    assert (before["weights"], before["weights_stale"]) == (after["weights"], 0)


@pytest.mark.parametrize(("name", "said"), WRONG_NAMES.items(), ids=repr)
def test_names_that_cannot_be_sent_are_refused(client, name, said):
    with pytest.raises(ConfigError, match=f"the name of weights .*{said}"):
        client.publish(name, ONE, 1)
    with pytest.raises(ConfigError, match=f"the name of weights .*{said}"):
        client.latest(name)
    with pytest.raises(SchemaError, match=f"the name of tensor .*{said}"):
        client.publish("policy", {"w": np.ones(1), name: np.ones(1)}, 1)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (
            {str(n): np.ones(1) for n in range(5000)},
            "5,000 tensors of weights .* length <= 4096.* join",
        ),
        (
            {f"{n:0250}": np.ones(1) for n in range(400)},
            r"400 tensors of weights 'policy' .* 10\d{4} bytes, 65536 .*shorten names",
        ),
        ({"w": np.ones((1,) * 17)}, "length <= 16 .*: join or reshape"),
        ({"w": np.ones((0, 1 << 31)), "x": np.ones(1)}, r"<= 2147483647 .*: join or reshape"),
    ],
    ids=["many", "long names", "dimensions", "a long dimension"],
)
def test_more_than_one_message_names_is_refused(client, tensors, said):
    with pytest.raises(SchemaError, match=said):
        client.publish("policy", tensors, 1)
