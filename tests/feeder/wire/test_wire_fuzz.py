"""A hundred thousand messages that no peer means to send: each is Malformed or a message, and
never anything else.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from wire_rig import PIXELS, SMALL, examples, raw

from async_loader.errors import Malformed
from async_loader.feeder import wire

LAYOUTS = [wire.RowLayout.of(schema) for schema in (SMALL, PIXELS)]
SEEDS = list(range(4))
PER_SEED = 25_000
INTERESTING = [
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**33,
    2**63,
    2**64 - 1,
]


def flip(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    at = rng.randrange(len(frames))
    frame = bytearray(frames[at] or b"\0")
    for _ in range(rng.choice([1, 1, 2, 8])):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    return [*frames[:at], bytes(frame), *frames[at + 1 :]]


def cut(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    at = rng.randrange(len(frames))
    return [*frames[:at], frames[at][: rng.randrange(len(frames[at]) + 1)], *frames[at + 1 :]]


def splice(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    at = rng.randrange(len(frames))
    one, two = sorted(rng.randrange(len(frames[at]) + 1) for _ in range(2))
    frame = (
        frames[at][:one]
        + rng.choice([b"", rng.randbytes(rng.randrange(9)), frames[at][one:two] * 2])
        + frames[at][two:]
    )
    return [*frames[:at], frame, *frames[at + 1 :]]


def number(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    front, at = bytearray(frames[0].ljust(36, b"\0")), rng.randrange(4, 29)
    size = rng.choice([1, 2, 4, 8])
    value = rng.choice(INTERESTING) % 2 ** (8 * size)
    front[at : at + size] = value.to_bytes(size, "little")
    return [bytes(front[:36]), *frames[1:]]


def shuffle(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    body = [*frames[1:], *rng.choices(POOL, k=1)[0][1:]]
    rng.shuffle(body)
    return [frames[0], *body[: rng.randrange(len(body) + 1)]]


def retype(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    front = bytearray(frames[0].ljust(36, b"\0"))
    front[5], front[6] = rng.choice(list(wire.Type)), rng.choice([0, 0, 1])
    return [bytes(front[:36]), *frames[1:]]


def noise(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    return [
        frames[0],
        *(rng.randbytes(rng.choice([0, 1, 3, 16, len(frame)])) for frame in frames[1:]),
    ]


POOL = [raw(message) for message in examples().values()]
MUTATIONS = [flip, flip, cut, splice, splice, number, shuffle, retype, noise]


def read(frames: list[bytes]) -> wire.Message:
    """Everything that a server would look at."""
    message = wire.decode(frames)
    body = message.body
    if isinstance(body, wire.Insert):
        for layout in LAYOUTS:
            if layout.schema_id == message.schema:
                wire.read_insert(body, layout)
    spec = getattr(body, "schema", None)
    if spec is not None:
        wire.RowLayout.of(wire.schema_of(spec))
    return message


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_mutated_messages_are_malformed_or_messages(seed):
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(PER_SEED):
        frames = rng.choice(POOL)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            frames = rng.choice(MUTATIONS)(rng, frames)
        try:
            outcomes[read(frames).type.name] += 1
        except Malformed as error:
            outcomes["malformed"] += 1
            answer = wire.refuse(error)
            if answer is not None:
                assert wire.decode(wire.encode(answer)).body == answer.body
    assert outcomes["malformed"] > PER_SEED / 3
    assert len(outcomes) == len(wire.Type) + 1, "some kind of message never got through"


def test_bytes_from_nowhere_are_malformed():
    rng = random.Random(9)
    for _ in range(5_000):
        frames = [
            rng.randbytes(rng.choice([0, 1, 35, 36, 36, 36, 37])) for _ in range(rng.randrange(4))
        ]
        if frames and rng.random() < 0.5:
            frames[0] = b"ALDR\1\1" + rng.randbytes(30)
        with pytest.raises(Malformed):
            read(frames)
