"""One message of each kind, the same each time; and schemas, rows and arrays for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from async_loader import Field, Hindsight, Schema, Sequences, Transitions, tree
from async_loader.feeder import wire
from async_loader.feeder.plain_values import plain_view
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.message import HEADER
from tests.insert_rows import insert

SMALL = Schema.of({"obs": Field((2,), "f4", next="next_obs"), "action": "i8", "reward": "f4"})
PIXELS = Schema.of(
    {"obs": {"pixels": Field((32, 32), "u1", stack=4, next="next_obs"), "hit": "?"}, "reward": "f4"}
)
INDEXED = Schema.of({"index": "i8"})
HELLO = wire.Hello(client=b"0123456789abcdef", pid=4711, host="a-host", user_agent="example/1")


def array(rng: np.random.Generator, field: Field, rows: int) -> np.ndarray:
    data = rng.integers(0, 2 if field.dtype.kind == "b" else 256, rows * field.nbytes, np.uint8)
    return data.view(field.dtype).reshape(rows, *field.shape)


def steps(schema: Schema, rows: int, seed: int = 0, flags: int = 0) -> wire.Steps:
    rng = np.random.default_rng(seed)
    columns = [array(rng, field, rows) for field in schema.fields]
    priorities = np.where(np.arange(rows) % 2, np.nan, np.arange(rows) / 4)
    return wire.Steps(
        np.arange(rows, dtype=np.uint32) % 3, np.full(rows, flags, np.uint32), priorities, columns
    )


def three_steps() -> wire.Steps:
    """Of SMALL: two steps and the observation after the last."""
    columns = [
        np.array([[0.5, 1], [1.5, 2], [2.5, 3]], np.float32),
        np.array([7, -8, 0], np.int64),
        np.array([0.25, 1, 0], np.float32),
    ]
    flags = np.array([0, wire.TRUNCATED, wire.FINAL], np.uint32)
    return wire.Steps(np.zeros(3, np.uint32), flags, np.array([np.nan, 2, np.nan]), columns)


def examples() -> dict[str, wire.Message]:
    """Every kind of message, by name."""
    small, pixels = wire.RowLayout.of(SMALL), wire.BatchForm.of(PIXELS, 3)
    spec = wire.spec_of(SMALL)
    tensors = (wire.TensorSpec("layer.weight", codes.dtype_code(np.dtype("f4")), (2, 2)),)
    producer, name = bytes(range(16)), "policy"
    bodies = {
        "HELLO": HELLO,
        "WELCOME": wire.Welcome(
            incarnation=bytes(16),
            heartbeat_s=1.0,
            silence_s=5.0,
            insert_endpoint="tcp://10.0.0.1:5001",
            pull_endpoint="tcp://10.0.0.1:5002",
            memory_endpoint=None,
            limits=wire.Limits(),
            tables=("replay",),
        ),
        "OPEN_WRITER": wire.OpenWriter(table="replay", producer=producer, schema=spec),
        "WRITER": wire.Writer(
            schema=spec, applied=0, window_bytes=1 << 24, window_rows=4096, resumed=False
        ),
        "CLOSE_WRITER": wire.CloseWriter(last=1),
        "OPEN_READER": wire.OpenReader(
            table="replay", batch_size=256, view=plain_view(Transitions(3, 0.99)), seed=1
        ),
        "READER": wire.Reader(schema=wire.spec_of(PIXELS), leased=False, transport="tcp"),
        "CLOSE_READER": wire.CloseReader(6, 1, (3, 5)),
        "STATUS": wire.Status(),
        "STATUS_REPLY": wire.StatusReply(
            {"tables": {"replay": {"rows": 3}}, "up_s": 1.5, "well": True, "x": None}
        ),
        "DRAIN": wire.Drain(),
        "TOTALS": wire.Totals(),
        "TOTALS_REPLY": wire.TotalsReply(items=1000, mass=512.5, least=0.25, uses_up=True),
        "ROLLOUTS": wire.Rollouts(table="math", call="reserve", arguments={"name": "prompts"}),
        "ROLLOUTS_REPLY": wire.RolloutsReply(answer={"group": 7}),
        "DONE": wire.Done(),
        "LATEST": wire.Latest(name=name, newer_than=6, most=1 << 20, timeout_s=2.0),
        "WEIGHTS": wire.Weights(name=name, version=7, total_bytes=16, specs=tensors),
        "WEIGHTS, none newer": wire.Weights(name=name, version=6),
        "PUBLISH": wire.Publish(name=name, version=7, total_bytes=16, specs=tensors),
        "PUBLISHED": wire.Published(newest=False, version=8, run=producer),
        "PING": wire.Ping(),
        "PONG": wire.Pong(),
        "ERROR": wire.Error.of(
            wire.ErrorCode.UNKNOWN_WRITER,
            "INSERT 3 came, 2 is missing: open it again",
            2,
        ),
        "END": wire.End(reason="the table is closed", count=12),
        "INSERT": insert(small, three_steps()),
        "ACK": wire.Ack(1, 1 << 24, 4096),
        "PULL": wire.Pull(4, (0, 2)),
        "BATCH": pixels.batch(steps(PIXELS, 2).columns),
        "BATCH of two": _two_batches(),
        "SLOT_BATCHES": wire.SlotBatches((wire.InSlot(2, 9, 256), wire.InSlot(0, 1, 256, 2))),
        "APPLIED": wire.Applied(1, 1),
        "RETURN": wire.Return((11, 12)),
        "ABOUT": wire.About(table="replay"),
        "ABOUT_REPLY": wire.AboutReply(
            schema=spec,
            limiter=[100, 4.0, 20.0],
            sampler="Uniform()",
            stats={"size": 3, "capacity": 1000},
        ),
        "CLEAR": wire.Clear(table="replay"),
        "SAVE": wire.Save(table="replay", path="nightly"),
        "SAVED": wire.Saved(number=1, nbytes=4096, duration_s=0.25, pause_s=0.001, rows=3),
        "LOAD": wire.Load(table="replay", path="nightly", number=1),
        "GET": wire.Get(table="replay", count=2),
        "GOT": wire.Got(rows=1, schema=wire.spec_of(INDEXED)),
        "GOT nothing": wire.Got(rows=0, schema=wire.spec_of(INDEXED)),
        "UPDATE": wire.Update(
            table="replay", count=2, specs=(wire.TensorSpec("reward", 11, (2,)),)
        ),
        "DELETE": wire.Delete(table="replay", count=2),
        "PRIORITIZE": wire.Prioritize(
            table="replay", count=2, specs=(wire.TensorSpec("priority", 12, (2,)),)
        ),
        "SLOT_INSERT": wire.SlotInsert(60, 3, 74),
        "OPEN_READER of sequences": wire.OpenReader(
            table="replay",
            batch_size=64,
            view=plain_view(Sequences(80, stride=40, burn_in=40, state=("h",))),
        ),
        "READER of sequences": wire.Reader(
            schema=wire.spec_of(PIXELS), leased=False, transport="tcp", eta=0.9
        ),
        "OPEN_READER of hindsight goals": wire.OpenReader(
            table="replay",
            batch_size=64,
            view=plain_view(Hindsight(max, n_steps=3, info="action", compute_terminated=max)),
        ),
        "OPEN_READER of recent policies": wire.OpenReader(table="replay", batch_size=64, max_lag=1),
    }
    schemas = {
        "INSERT": small.schema_id,
        "SLOT_INSERT": pixels.schema_id,
        "WRITER": small.schema_id,
        "BATCH": pixels.schema_id,
        "READER": pixels.schema_id,
    }
    ids, block = (
        np.array([3, 70], np.int64).tobytes(),
        wire.BatchForm.of(INDEXED, 1).batch([np.array([70])]).frames[0].tobytes(),
    )
    data = {
        "WEIGHTS": np.eye(2, dtype=np.float32).tobytes(),
        "PUBLISH": np.eye(2, dtype=np.float32).tobytes(),
        "GET": ids,
        "DELETE": ids,
        "UPDATE": ids + np.array([0.5, 2], np.float32).tobytes(),
        "PRIORITIZE": ids + np.array([0.5, 2.0]).tobytes(),
        "GOT": block,
    }
    return {
        name: wire.Message(
            body, 0 if at == 0 else 81, at, min(at, 1), schemas.get(name.split(" of ")[0], 0),
            data=data.get(name),
        )
        for at, (name, body) in enumerate(bodies.items())
    }  # fmt: skip


def _two_batches() -> wire.Batch:
    form = wire.BatchForm.of(Schema.of({"done": "?", "index": "i8"}), 2)
    pairs = [
        [np.array([False, True]), np.array([5, 6])],
        [np.array([True, False]), np.array([7, 8])],
    ]
    return wire.Batch(4, [np.concatenate([form.batch(columns).frames[0] for columns in pairs])])


def raw(message: wire.Message) -> list[bytes]:
    """Its frames, as bytes."""
    return [memoryview(frame).tobytes() for frame in wire.encode(message)]


def reheaded(frames: list[bytes], /, **changes: int) -> list[bytes]:
    """With a header that says otherwise."""
    names = ("magic", "version", "type", "flags", "session", "sequence", "number", "schema", "rows")
    head = dict(zip(names, HEADER.unpack(frames[0]), strict=True)) | changes
    return [HEADER.pack(*head.values()), *frames[1:]]


# -- hypothesis ------------------------------------------------------------------------------------

dtypes = st.sampled_from(list(codes.DTYPES.values()))
shapes = st.one_of(
    st.lists(st.integers(0, 3), max_size=4).map(tuple),
    st.sampled_from([(1024,), (40, 30), (16, 16, 2)]),
)
_keys = st.text(max_size=5)


@st.composite
def structures(draw: st.DrawFn, depth: int = 3) -> tree.Structure:
    kind = draw(st.sampled_from([None, dict, list, tuple] if depth else [None]))
    if kind is None:
        return None
    if kind is dict:
        keys: tuple[object, ...] = tuple(draw(st.lists(_keys, max_size=3, unique=True)))
    else:
        keys = tuple(range(draw(st.integers(0, 3))))
    return tree.Node(kind, keys, tuple(draw(structures(depth=depth - 1)) for _ in keys))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    structure = draw(structures().filter(lambda found: len(list(tree.names(found))) > 0))
    return Schema(
        structure,
        tuple(
            Field(
                draw(shapes),
                draw(dtypes),
                stack=draw(st.integers(1, 4)),
                name=f"{name}#{i}",
                next=draw(st.none() | st.text(min_size=1, max_size=9)),
                padding=draw(st.sampled_from(["repeat", "zero"])),
            )
            for i, name in enumerate(tree.names(structure))
        ),
    )
