"""The same calls, of a table of this process and of a feeder's: the same results, the same errors,
the same steps afterwards.

Programs of calls are drawn, with good and with odd arguments, one odd one in a call at most. What a
writer has added is compared after its `flush`: a feeder's ids come later than `append` returns.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from async_loader import Field, Fifo, Prioritized, ReplayBuffer, Transitions, Uniform
from async_loader.errors import AsyncLoaderError
from async_loader.feeder import connect
from async_loader.table import Table, Writer

KNOWN = frozenset({"named streams that two writers share", "priorities of a table without them"})
"""Differences that programs leave out. A line that is taken out of here is compared from then
on.
"""

# -- tables ----------------------------------------------------------------------------------------

SCHEMAS: dict[str, dict[str, Any] | None] = {
    "plain": {"x": "int64", "reward": "float32"},
    "linked": {
        "x": "int64",
        "obs": Field((2,), "float32", next="next_obs"),
        "reward": "float32",
        "terminated": "bool",
        "truncated": "bool",
    },
    "nested": {
        "obs": {
            "near": Field((2,), "uint8", next="next_obs"),
            "far": Field((), "float32", next="next_obs"),
        },
        "x": "int64",
        "reward": "float32",
        "done": "bool",
    },
    "stacked": {
        "obs": Field((2,), "float16", stack=3, padding="zero"),
        "x": "int32",
        "reward": "float64",
        "terminated": "bool",
    },
}
if not KNOWN & {"calls before a schema", "order of fields from a first step"}:
    SCHEMAS["first step"] = None  # which is a plain one, with fields of its ends


class Config(NamedTuple):
    """What a table is made of, and what its steps are."""

    name: str
    steps: str
    sampler: Callable[[], Any]
    others: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """Keywords of a `ReplayBuffer`, with a sampler of its own."""
        return {**self.others, "sampler": self.sampler()}


def _configs() -> list[Config]:
    samplers: dict[str, Callable[[], Any]] = {
        "uniform": Uniform,
        "prioritized": lambda: Prioritized(0.7),
        "fifo": Fifo,
    }
    views = [None, Transitions(1, 0.9), Transitions(2, 0.5), Transitions(3, 0.9)]
    sizes, times = itertools.cycle([3, 6, 13, 40, 8]), itertools.cycle([0, 0, 1, 3, 0])
    made = []
    for turn, (steps, (kind, sampler)) in enumerate(itertools.product(SCHEMAS, samplers.items())):
        for view in (views[turn % 4], views[(turn + 2) % 4]):
            capacity = max(next(sizes), 1 if view is None else 3 * view.n_steps)
            n = 0 if view is None else view.n_steps
            given = {"capacity": capacity, "seed": turn, "max_times_sampled": next(times)}
            given |= {
                name: value
                for name, value in (("schema", SCHEMAS[steps]), ("view", view))
                if value is not None
            }
            made.append(Config(f"{steps}-{kind}-{n}", steps, sampler, given))
    return made


CONFIGS = {one.name: one for one in _configs()}
_EACH, _MORE = 12, 64
"""Tables of each kind that a feeder is started with; of one kind, where more programs are drawn
than that. Each is used once.
"""


class Pool:
    """Pairs of equal tables, empty ones. Feeders are started as they are needed, and end with the
    pool.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._left: dict[str, list[Table]] = {}

    def __enter__(self) -> Pool:
        self._start(CONFIGS, _EACH)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, names: Iterable[str], each: int) -> None:
        tables = {f"{name}-{n}": CONFIGS[name].settings() for name in names for n in range(each)}
        client = self._stack.enter_context(connect("embedded", tables=tables))
        for name in names:
            self._left[name] = [client.table(f"{name}-{n}") for n in range(each)]

    def pair(self, config: Config) -> tuple[ReplayBuffer, Table]:
        if not self._left[config.name]:
            self._start([config.name], _MORE)
        given = config.settings()
        return ReplayBuffer(given.pop("capacity"), **given), self._left[config.name].pop()


# -- steps and arguments ---------------------------------------------------------------------------

ENDS = ("terminated", "truncated", "done")


def columns(steps: str, first: int, rows: int) -> dict[str, Any]:
    """Rows of steps whose numbers are ``first`` and those after it, without how episodes end."""
    schema = SCHEMAS[steps] or SCHEMAS["plain"]
    assert schema is not None
    return _columns(
        {name: one for name, one in schema.items() if name not in ENDS},
        np.arange(first, first + rows),
    )


def _columns(schema: dict[str, Any], n: np.ndarray) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, one in schema.items():
        if isinstance(one, dict):
            made[name] = _columns(one, n)
        else:
            kind = one if isinstance(one, Field) else Field((), one)
            whole = np.multiply.outer(n % 100, np.arange(1, 1 + math.prod(kind.shape))) + (
                len(name) % 3
            )
            made[name] = whole.reshape(len(n), *kind.shape).astype(kind.dtype)
    return made


def following(steps: str, first: int, rows: int | None) -> Any:
    """What follows such steps, as ``final_obs`` says it; of one step without ``rows``."""
    many = 1 if rows is None else rows
    obs = columns(steps, first + 50, many).get("obs", np.zeros((many, 2), np.float32))
    return first_row(obs) if rows is None else obs


def first_row(value: Any) -> Any:
    return (
        {key: first_row(one) for key, one in value.items()} if isinstance(value, dict) else value[0]
    )


ODD: dict[str, Callable[[np.ndarray], Any]] = {
    "tensor": lambda v: torch.from_numpy(v.copy()),
    "tensor with a gradient": lambda v: torch.from_numpy(v.astype(np.float32)).requires_grad_(),
    "tensor that numpy lacks": lambda v: torch.from_numpy(v.copy()).to(torch.bfloat16),
    "tensor without data": lambda v: torch.empty(v.shape, device="meta"),
    "float64": lambda v: v.astype(np.float64),
    "long double": lambda v: v.astype(np.longdouble),
    "int8": lambda v: v.astype(np.int8),
    "bool": lambda v: v.astype(np.bool_),
    "big-endian integers": lambda v: v.astype(">i8"),
    "with strides": lambda v: np.stack([v, v], -1)[..., 0],
    "fortran": lambda v: np.asfortranarray(v),
    "matrix": lambda v: v.copy().view(_Sub),
    "objects": lambda v: v.astype(object),
    "bytes": lambda v: v.tobytes(),
    "structured": lambda v: np.zeros(v.shape, [("a", np.float32), ("b", np.int8)]),
    "none": lambda v: None,
    "shorter": lambda v: v[:-1] if v.ndim else None,
    "one number": lambda v: 1,
    "infinite": lambda v: np.full(v.shape, np.inf),
    "large integers": lambda v: np.full(v.shape, 1 << 62),
}


class _Sub(np.ndarray):
    pass


def _read_only(value: np.ndarray) -> np.ndarray:
    value.setflags(write=False)
    return value


def made_odd(kind: str, value: Any, place: int = 0) -> Any:
    """``value`` with one of its arrays made odd."""
    if isinstance(value, dict):
        key = sorted(value)[place % len(value)]
        return {**value, key: made_odd(kind, value[key], place // len(value))}
    with np.errstate(all="ignore"):
        return ODD[kind](np.asarray(value))


IDS: dict[str, Callable[[list[int]], Any]] = {
    "array": lambda ids: np.array(ids, np.int64),
    "list": list,
    "int32": lambda ids: np.array(ids, np.int64).astype(np.int32),
    "big-endian": lambda ids: np.array(ids, ">i8"),
    "read-only": lambda ids: _read_only(np.array(ids, np.int64)),
    "tensor": torch.tensor,
    "objects": lambda ids: np.array(ids, object),
    "bools": lambda ids: np.array(ids, np.bool_),
    "rows and columns": lambda ids: np.array([ids, ids], np.int64),
    "none": lambda ids: None,
    "ragged": lambda ids: [ids, 3],
    "dict": lambda ids: {"index": ids},
}
ids = st.lists(
    st.one_of(
        st.integers(0, 45), st.sampled_from([-1, -5, 1000, 1 << 40, (1 << 48) + 1, (1 << 63) - 1])
    ),
    max_size=6,
)

PRIORITIES: dict[str, Callable[[int], Any]] = {
    "array": lambda n: np.linspace(0, 2, n),
    "list": lambda n: [0.5] * n,
    "integers": lambda n: np.arange(n),
    "float32 [rows, 1]": lambda n: np.ones((n, 1), np.float32),
    "tensor": lambda n: torch.rand(n, generator=torch.Generator().manual_seed(n)),
    "too many": lambda n: np.ones(n + 1),
    "one number": lambda n: 1.0,
    "text": lambda n: ["a"] * n,
    "complex": lambda n: np.ones(n, np.complex64),
    "objects": lambda n: np.full(n, 1, object),
    "ragged": lambda n: [[1.0], [1.0, 2.0]],
}
if "NaN priorities" not in KNOWN:
    PRIORITIES["nan"] = lambda n: np.full(n, np.nan)
if "priorities below 0 and beyond 1e100" not in KNOWN:
    PRIORITIES |= {"negative": lambda n: np.full(n, -1.0)}
    PRIORITIES |= {
        "infinite": lambda n: np.full(n, np.inf),
        "too large": lambda n: np.full(n, 1e200),
    }
NAMES: list[Any] = [None, "a", 7, np.int64(7), "", "nul \0 é", True, np.str_("a")]
BAD_NAMES: list[Any] = [[[1]], {"a": 1}, np.zeros((2, 2)), {1}, torch.zeros(2, 2)]
if "float stream names" not in KNOWN:
    NAMES += [1.5, np.float32(2)]
VIEWS: list[Any] = [None, Transitions(1, 0.9), Transitions(2, 0.5), Transitions(3, 1.0), "view", 3]
if "refused views that keep their look-ahead" not in KNOWN:
    VIEWS += [Transitions(2, 0.5, reward="nothing"), Transitions(500, 0.5)]

# -- calls -----------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One call of a program: what is called, and what says its arguments."""

    name: str
    says: dict[str, Any]


def _call(name: str, **says: Any) -> st.SearchStrategy[Call]:
    return st.builds(Call, st.just(name), st.fixed_dictionaries(says))


writers = st.integers(0, 1)
names = st.sampled_from(NAMES)
odd_kinds = st.sampled_from(sorted(ODD))
one_odd = st.one_of(
    st.none(),
    st.none(),
    st.tuples(st.sampled_from(["fields", "fields", "final"]), odd_kinds, st.integers(0, 5)),
    st.tuples(
        st.just("ends"),
        st.sampled_from(["array", "tensor", "text", "none", "number"]),
        st.integers(0, 1),
    ),
    st.tuples(
        st.just("keys"),
        st.sampled_from(["lacks", "more", "both", "no dict", "empty", "number"]),
        st.just(0),
    ),
    st.tuples(st.just("priority"), st.sampled_from(sorted(PRIORITIES)), st.just(0)),
    st.tuples(st.just("stream"), st.just(""), st.integers(0, len(BAD_NAMES) - 1)),
)
ends = st.sampled_from(["", "", "", "terminated", "truncated", "both"])
finals = st.sampled_from([False, False, True])
ODD_OR_NOT = (names, st.booleans(), one_odd, st.booleans())
PLAIN = (st.none(), st.just(False), st.none(), st.just(False))


def _adds(name: str, drawn: tuple[Any, Any, Any, Any], **more: Any) -> Any:
    """Calls that add steps, with odd arguments or plain ones."""
    stream, priority, odd, own = drawn
    return _call(
        name,
        writer=writers,
        stream=stream,
        ends=ends,
        final=finals,
        priority=priority,
        odd=odd,
        own=own,
        **more,
    )


CALLS = st.one_of(
    _adds("append", ODD_OR_NOT),
    _adds("append", PLAIN),
    _adds("extend", ODD_OR_NOT, rows=st.sampled_from([0, 1, 2, 3, 5, 9, 50]), each=st.booleans()),
    _adds("extend", PLAIN, rows=st.integers(1, 8), each=st.booleans()),
    _call(
        "end_episode",
        writer=writers,
        stream=names,
        ends=ends,
        final=finals,
        odd=st.one_of(st.none(), odd_kinds),
        place=st.integers(0, 1),
    ),
    _call("close", writer=writers),
    _call(
        "sample",
        rows=st.sampled_from([1, 1, 2, 3, 5, 8, 40, 0, -1, True, 1.0, "2", None]),
        view=st.sampled_from(VIEWS),
        timeout_s=st.sampled_from([None, None, 0, math.nan, -1, "a"]),
        how=st.sampled_from(["numpy", "numpy", "torch", "cpu", "jax", "gpu 7"]),
    ),
    _call(
        "sample", rows=st.integers(1, 4), view=st.none(), timeout_s=st.none(), how=st.just("numpy")
    ),
    _call("get", ids=ids, how=st.sampled_from(sorted(IDS)), view=st.sampled_from(VIEWS)),
    _call("delete", ids=ids, how=st.sampled_from(sorted(IDS))),
    _call(
        "update_priorities",
        ids=ids,
        how=st.sampled_from(["array", "array", *sorted(IDS)]),
        priority=st.sampled_from(sorted(PRIORITIES)),
    ),
    _call(
        "update",
        ids=ids,
        how=st.sampled_from(["array", "array", *sorted(IDS)]),
        field=st.sampled_from(["x", "reward", "obs", "terminated", "nothing", ""]),
        odd=st.one_of(st.none(), st.tuples(odd_kinds, st.integers(0, 1))),
    ),
    _call("clear"),
    _call("see"),
)


@dataclass
class Side:
    """One of the two tables, its writers, and what its calls are told.

    Attributes
    ----------
    added : set of int
        Writers that have added a step.
    """

    table: Table
    config: Config
    remote: bool
    writers: list[Writer] = field(default_factory=list)
    added: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.writers = [self.table.writer("first"), self.table.writer()]

    def flush(self) -> None:
        for writer in self.writers:
            if not writer.closed:
                writer.flush()

    def end(self) -> None:
        for writer in self.writers:
            with contextlib.suppress(AsyncLoaderError):  # what ended it was said before
                writer.close()

    def call(self, call: Call, step: int) -> Any:
        """What the call returns, as what can be compared. ``step``: the number of the next step."""
        return getattr(self, "_" + call.name)(step, **call.says)

    # -- writers -----------------------------------------------------------------------------------

    def _writer(self, number: int) -> Writer:
        """Steps of the other one are there before."""
        other = self.writers[1 - number]
        if not other.closed:
            other.flush()
        return self.writers[number]

    def _named(self, writer: int, name: Any) -> Any:
        if not writer or "named streams that two writers share" not in KNOWN:
            return name
        return name if name is None else f"second {name}"

    def _added(self, writer: int) -> None:
        self.added.add(writer)

    def _step(
        self, step: int, rows: int | None, says: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of `append`, or of `extend` where there are rows."""
        steps, wrong = self.config.steps, says["odd"] or ("", "", 0)
        if wrong[0] == "priority":  # the only fault: which of two is said does not matter
            says = {**says, "ends": "", "final": False}
        fields = columns(steps, step, 1 if rows is None else rows)
        if rows is None:
            fields = first_row(fields)
        given: dict[str, Any] = {}
        for name in ("terminated", "truncated") if says["ends"] == "both" else (says["ends"],):
            if name:
                given[name] = (
                    np.arange(rows) % 3 == 2 if rows is not None and says["each"] else True
                )
        if says["own"] and "terminated" in (SCHEMAS[steps] or ()):
            said = given.pop("terminated", False)
            fields["terminated"] = said if rows is None else np.zeros(rows, np.bool_) | said
        if says["final"]:
            given["final_obs"] = following(steps, step, rows)
        if says["priority"] and self._prioritizes:
            given["priority"] = 0.5 + step % 3 if rows is None else 0.5 + np.arange(rows)
        stream = self._named(says["writer"], says["stream"])
        if stream is not None:
            other = self._named(says["writer"], "b")
            given["stream"] = (
                stream if rows is None or not says["each"] else ([stream, other] * rows)[:rows]
            )
        return self._with_odd(fields, given, rows, *wrong)

    @property
    def _prioritizes(self) -> bool:
        return (
            "prioritized" in self.config.name or "priorities of a table without them" not in KNOWN
        )

    def _with_odd(
        self,
        fields: dict[str, Any],
        given: dict[str, Any],
        rows: int | None,
        what: str,
        kind: str,
        place: int,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if what == "fields":
            fields = made_odd(kind, fields, place)
        elif what == "final":
            given["final_obs"] = made_odd(
                kind, given.get("final_obs", np.zeros(2, np.float32)), place
            )
        elif what == "ends":
            values = {
                "array": np.ones(2, np.bool_),
                "tensor": torch.ones(2),
                "text": "a",
                "none": None,
                "number": np.float32(1),
            }
            where = fields if place else given
            where["terminated"] = values[kind]
        elif what == "keys":
            return self._with_keys(fields, given, kind)
        elif what == "priority" and self._prioritizes:
            given["priority"] = PRIORITIES[kind](rows or 1)
        elif what == "stream":
            given["stream"] = BAD_NAMES[place]
        return ((fields,), given)

    def _with_keys(
        self, fields: dict[str, Any], given: dict[str, Any], kind: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if kind == "lacks":
            fields.pop("reward")
        elif kind == "more":
            fields["y"] = fields["x"]
        elif kind == "number":
            fields[3] = fields.pop("x")  # type: ignore[index]
        elif kind == "both":
            given["x"] = fields["x"]
        elif kind == "empty":
            fields = {}
        return (([3] if kind == "no dict" else fields,), given)

    def _append(self, step: int, **says: Any) -> Any:
        args, given = self._step(step, None, says)
        self._writer(says["writer"]).append(*args, **given)
        self._added(says["writer"])

    def _extend(self, step: int, rows: int, **says: Any) -> Any:
        args, given = self._step(step, rows, says)
        self._writer(says["writer"]).extend(*args, **given)
        if rows:
            self._added(says["writer"])

    def _end_episode(
        self,
        step: int,
        writer: int,
        stream: Any,
        ends: str,
        final: bool,
        odd: str | None,
        place: int,
    ) -> Any:
        given: dict[str, Any] = {"stream": self._named(writer, stream)}
        given |= {
            name: True
            for name in (("terminated", "truncated") if ends == "both" else (ends,))
            if name
        }
        if final:
            value = following(self.config.steps, step, None)
            given["final_obs"] = value if odd is None else made_odd(odd, value, place)
        if (
            final
            and writer not in self.added
            and "end_episode(final_obs) before the first step" in KNOWN
        ):
            return
        self._writer(writer).end_episode(**given)

    def _close(self, step: int, writer: int) -> Any:
        """Its open episodes end; another takes its place."""
        one = self._writer(writer)
        one.close()
        self.writers[writer] = self.table.writer("first" if not writer else None)
        self.added.discard(writer)

    # -- the table ---------------------------------------------------------------------------------

    def _sample(self, step: int, rows: Any, view: Any, timeout_s: Any, how: str) -> Any:
        self.flush()
        given = {"device": how} if how in ("cpu", "gpu 7") else {"batch_format": how}
        if view is not None:
            given["view"] = view
        return self._batch(self.table.sample(rows, timeout_s=timeout_s, **given))

    def _get(self, step: int, ids: list[int], how: str, view: Any) -> Any:
        self.flush()
        return self._batch(self.table.get(IDS[how](ids), view=view))

    def _delete(self, step: int, ids: list[int], how: str) -> Any:
        self.flush()
        return self.table.delete(IDS[how](ids))

    def _update_priorities(self, step: int, ids: list[int], how: str, priority: str) -> Any:
        self.flush()
        if not self._prioritizes or (not ids and "update_priorities([], [])" in KNOWN):
            return None
        return self.table.update_priorities(IDS[how](ids), PRIORITIES[priority](len(ids)))

    def _update(
        self, step: int, ids: list[int], how: str, field: str, odd: tuple[str, int] | None
    ) -> Any:
        self.flush()
        fields = columns(self.config.steps, step, len(ids))
        value = fields.get(field, np.ones(len(ids), np.bool_))
        if odd is not None:
            value = made_odd(odd[0], value, odd[1])
        return self.table.update(IDS[how](ids), **({field: value} if field else {}))

    def _clear(self, step: int) -> None:
        self.flush()
        self.table.clear()

    def _see(self, step: int) -> Any:
        """All that the table shows of itself and its steps."""
        self.flush()
        table, stats = self.table, self.table.stats()
        numbers = {
            name: getattr(stats, name)
            for name in ("size", "capacity", "inserted", "sampled", "deleted", "nbytes", "waiting")
        }
        added = [writer.steps for writer in self.writers]
        return (
            numbers,
            len(table),
            table.capacity,
            table.nbytes,
            table.schema,
            added,
            self._batch(table.get(range(4 * step + 8))),
        )

    def _batch(self, batch: dict[str, Any]) -> Any:
        """Arrays by their dotted names, in order."""
        again = batch.pop("redelivered", None) if self.remote else None
        assert again is None or not again.any()
        return list(_leaves(batch))


def _leaves(batch: Any, name: str = "") -> Iterator[tuple[Any, ...]]:
    if isinstance(batch, dict):
        for key, value in batch.items():
            yield from _leaves(value, f"{name}.{key}")
    else:
        array = np.asarray(batch)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        yield name, type(batch).__name__, array.dtype.str, array.shape, array.tobytes()


def outcome(side: Side, call: Call, step: int) -> tuple[str, Any]:
    try:
        return "returned", side.call(call, step)
    except Exception as error:
        return "raised", error


_ALIKE = 16
"""Characters with which two errors of one fact begin at least."""


def check(call: Call, here: tuple[str, Any], there: tuple[str, Any]) -> None:
    """Raise AssertionError where two outcomes of one call are not the same."""
    (how, one), (how_there, other) = here, there
    said = f"{call.name}: a table of this process {how} {one!r}, a feeder's {how_there} {other!r}"
    assert how == how_there, said
    if how == "returned":
        assert one == other, said
        return
    assert type(one) is type(other), said
    if isinstance(one, AsyncLoaderError):
        # a feeder may be asked in parts, each of which is counted by itself
        here, there = (re.sub(r"\d+", "N", str(error))[:_ALIKE] for error in (one, other))
        assert here == there, said
        assert vars(one) == vars(other), said


def play(pool: Pool, config: Config, program: list[Call]) -> None:
    here, there = pool.pair(config)
    with here, contextlib.ExitStack() as stack:
        sides = Side(here, config, False), Side(there, config, True)
        for side in sides:
            stack.callback(side.end)
        step = 0
        see = Call("see", {})
        for call in [
            *program,
            see,
            Call("close", {"writer": 0}),
            Call("close", {"writer": 1}),
            see,
        ]:
            check(call, *(outcome(side, call, step) for side in sides))
            step += call.says.get("rows", 1) if call.name == "extend" else call.name == "append"


@pytest.mark.slow
@pytest.mark.timeout(600)  # of a hundred programs
def test_a_feeders_table_answers_every_call_as_a_table_of_this_process_does() -> None:
    with Pool() as pool:
        # shrinking takes minutes
        @settings(max_examples=100, derandomize=True, database=None, phases=[Phase.generate])
        @given(st.sampled_from(sorted(CONFIGS)), st.lists(CALLS, min_size=2, max_size=16))
        def programs(config: str, program: list[Call]) -> None:
            play(pool, CONFIGS[config], program)

        programs()
