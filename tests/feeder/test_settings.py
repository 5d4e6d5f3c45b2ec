"""What a feeder is told: files, the command line, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from async_loader import Field, Schema, Transitions
from async_loader.errors import ConfigError, SchemaError
from async_loader.feeder.plain_values import (
    KINDS,
    SAMPLERS,
    object_of,
    plain,
    plain_of,
    sampler_from,
)
from async_loader.feeder.settings import ServerSettings, table_of
from async_loader.feeder.settings_reader import settings_of
from async_loader.feeder.table_settings import make_table
from async_loader.replay import samplers
from async_loader.replay.rate_limiter import MinSize, RateLimiter
from async_loader.scale.cluster_settings import ClusterSettings

CONFIGS = Path(__file__).parents[2] / "configs"


def load(tmp_path: Path, text: str) -> ServerSettings:
    path = tmp_path / "feeder.yaml"
    path.write_text(text)
    return ServerSettings.load(path)


def load_table(tmp_path: Path, text: str) -> dict:
    return load(tmp_path, f"tables: {{t: {{{text}}}}}").tables["t"]


# -- what is there ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["feeder", "atari", "prioritized", "queue"])
def test_a_config_that_is_shipped_makes_its_tables_parts(name):
    settings = ServerSettings.load(CONFIGS / f"{name}.yaml")
    assert str(settings.address()) == "tcp://127.0.0.1:5555"
    for table in settings.tables.values():
        with make_table(table) as buffer:
            assert isinstance(buffer.limiter, RateLimiter)
            assert (buffer.schema is None) == ("schema" not in table)


def test_the_configs_that_are_shipped_are_all_tested():
    assert sorted(path.stem for path in CONFIGS.glob("*.yaml")) == [
        "atari",
        "cluster",  # by tests/scale/test_cluster_settings.py
        "feeder",
        "prioritized",
        "queue",
    ]


def test_all_samplers_of_the_package_have_a_kind():
    assert set(SAMPLERS) == {
        "uniform",
        "prioritized",
        "rank_prioritized",
        "recency",
        "balanced",
        "fifo",
        "lifo",
        "min_heap",
        "max_heap",
    }
    assert KINDS.keys() - SAMPLERS.keys() == {"linear", "rate_limiter", "transitions", "sequences"}


RATIO = "min_size_to_sample: 9, samples_per_insert: 2"


@pytest.mark.parametrize(
    ("text", "limiter"),
    [
        ("min_size_to_sample: 7", MinSize(7)),
        ("kind: rate_limiter, min_size_to_sample: 7", MinSize(7)),
        (RATIO, RateLimiter(min_size_to_sample=9, samples_per_insert=2)),
        (
            f"{RATIO}, error_buffer: 8",
            RateLimiter(min_size_to_sample=9, samples_per_insert=2.0, error_buffer=8.0),
        ),
        (
            f"{RATIO}, error_buffer: [2, 40]",
            RateLimiter(min_size_to_sample=9, samples_per_insert=2.0, error_buffer=(2.0, 40.0)),
        ),
        (
            f"{RATIO}, error_buffer: .inf",
            RateLimiter(min_size_to_sample=9, samples_per_insert=2.0, error_buffer=float("inf")),
        ),
    ],
)
def test_every_limiter_is_made(tmp_path, text, limiter):
    table = load_table(tmp_path, f"capacity: 10, limiter: {{{text}}}")
    assert object_of(table["limiter"], ["rate_limiter"]) == limiter


# -- objects ---------------------------------------------------------------------------------------

numbers = st.floats(0, 1, allow_subnormal=False)
linears = st.builds(samplers.Linear, numbers, numbers, st.integers(1, 10**6))
normalize = st.sampled_from(["batch", "buffer", "none"])
OBJECTS = {
    "sampler": st.one_of(
        st.sampled_from([samplers.Fifo, samplers.Lifo, samplers.MinHeap, samplers.MaxHeap]).map(
            lambda kind: kind()
        ),
        st.builds(samplers.Uniform, st.booleans()),
        st.builds(
            samplers.Prioritized,
            numbers,
            numbers | linears,
            numbers,
            stratified=st.booleans(),
            normalize=normalize,
            new_priority=st.sampled_from(["max_ever", "max_now", "given"]),
        ),
        st.builds(
            samplers.RankPrioritized,
            numbers,
            numbers | linears,
            normalize=normalize,
            resort_every=st.none() | st.integers(1, 99),
        ),
        st.builds(samplers.Recency, st.floats(0.1, 1e6)),
        st.sampled_from(["task", "info.success"]).map(samplers.Balanced),
    ),
    "limiter": st.one_of(
        st.integers(1, 50).map(MinSize),
        st.builds(
            lambda least, ratio: RateLimiter(min_size_to_sample=least, samples_per_insert=ratio),
            st.integers(1, 50),
            st.floats(0.1, 9),
        ),
        st.just(RateLimiter(min_size_to_sample=9, samples_per_insert=2, error_buffer=float("inf"))),
        st.just(RateLimiter(min_size_to_sample=9, samples_per_insert=2, error_buffer=(-3, 50))),
    ),
    "view": st.builds(
        Transitions, st.integers(1, 99), numbers, reward=st.sampled_from(["reward", "r"])
    ),
    "schema": st.dictionaries(
        st.sampled_from("abcd"),
        st.builds(
            Field,
            st.lists(st.integers(0, 5), max_size=3),
            st.sampled_from(["float32", "u1", np.int64, bool, "c16"]),
            stack=st.integers(1, 3),
            padding=st.sampled_from(["repeat", "zero"]),
        ),
        min_size=1,
    ),
}


@given(st.sampled_from(sorted(OBJECTS)), st.data())
def test_an_object_means_the_same_in_the_tables_of_a_feeder_and_in_a_replay_buffer(name, data):
    given_ = data.draw(OBJECTS[name])
    settings = ServerSettings.from_plain({"t": {"capacity": 500, name: given_}})
    sent = settings_of(msgspec.msgpack.decode(msgspec.msgpack.encode(settings)), ServerSettings)
    assert sent == settings  # as it reaches an embedded feeder
    with make_table(sent.tables["t"]) as table:
        if name == "schema":
            assert table.schema == Schema.of(given_)
        else:
            assert sent.tables["t"][name] == plain(given_, "")
            assert repr(object_of(sent.tables["t"][name], [*KINDS])) == repr(given_)


@given(OBJECTS["sampler"])
def test_a_sampler_travels_as_a_configuration_says_it(sampler):
    sent = plain_of(sampler)
    table = ServerSettings.from_plain({"t": {"capacity": 5, "sampler": sent}}).tables["t"]
    assert table["sampler"] == sent
    assert repr(sampler_from(sent)) == repr(sampler)


SPACE = spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "hit": spaces.Discrete(2)})


@pytest.mark.parametrize(
    "spec",
    [
        Schema.of({"obs": ((4,), "float32"), "action": "int64"}),
        {"obs": ((4,), "float32"), "action": "int64"},
        {"obs": Field((4,), next="next_obs"), "action": np.int64},
        {"obs": SPACE, "action": spaces.Discrete(3), "reward": np.zeros((), np.float32)},
        {"obs": {"a": {"b": Field((2,)), "c": "u1"}}, "action": {"dtype": "int64"}},
        SPACE,
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_a_schema_of_a_feeder_is_what_the_schema_of_a_replay_buffer_is(spec):
    table = ServerSettings.from_plain({"t": {"capacity": 5, "schema": spec}}).tables["t"]
    plain = (
        {
            key: np.int64 if isinstance(value, dict) and "dtype" in value else value
            for key, value in spec.items()
        }
        if (isinstance(spec, dict))
        else spec
    )
    with make_table(table) as buffer:
        assert buffer.schema == Schema.of(plain)


class Mine(samplers.Uniform):
    """A sampler of one's own."""


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"capacity": 9, "sampler": Mine()},
            r"tables.t.sampler: (Mine|Uniform)\(.*: a feeder makes objects of",
        ),
        (
            {"capacity": 9, "schema": spaces.Tuple((spaces.Discrete(2),))},
            "tables.t.schema: a step is a dict of fields",
        ),
        ({"queue": 5, "sampler": "lifo"}, "a queue sets sampler itself: leave it out"),
        ({"queue": 5, "capacity": 3}, "a queue of 5: the table keeps 3 steps"),
        ({"queue": 0}, "size is 0"),
        ({"capacity": "9" * 400 + "B"}, "capacity"),
        ({"capacity": 9, "view": {"n_steps": 0}}, "tables.t.view: n_steps=0"),
        ("1000", "capacity='1000' has no unit: text is bytes, as in '1000B'"),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_the_remedy(table, said):
    with pytest.raises((ConfigError, SchemaError), match=said):
        ServerSettings.from_plain({"t": table})


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("1000", "{capacity: 1000}"),
        ("10_000", "{capacity: 10000}"),
        ("8GiB", "{capacity: 8GiB}"),
    ],
)
def test_a_size_may_be_said_in_short(tmp_path, short, full):
    assert load(tmp_path, f"tables: {{t: {short}}}") == load(tmp_path, f"tables: {{t: {full}}}")


# -- from the command line -------------------------------------------------------------------------


def test_the_command_line_goes_before_the_file():
    settings = ServerSettings.of(
        ["replay:5", "more:6"],
        bind="tcp://127.0.0.1:7000",
        config=CONFIGS / "atari.yaml",
        allow_insecure=True,
    )
    assert {name: table["capacity"] for name, table in settings.tables.items()} == {
        "replay": 5,
        "more": 6,
    }
    assert settings.address().port == 7000
    assert settings.security.allow_insecure
    assert settings.limits.window_rows == 16384


@pytest.mark.parametrize(
    "text",
    ["", ":", "replay", "replay:", ":5", "replay:many", "replay:-1", "replay:0", " x:3", "a\nb:3"],
)
def test_what_is_no_table_is_refused(text):
    with pytest.raises(ConfigError, match=r"as in|positive|characters|capacity"):
        ServerSettings.of([text])


def test_a_table_that_is_named_twice_is_refused():
    with pytest.raises(ConfigError, match="--table 'x:6': 'x' is there twice"):
        ServerSettings.of(["x:5", "y:5", "x:6"])


@given(
    st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=50),
    st.integers(1, 2**62),
)
def test_any_name_and_size_come_back(name, capacity):
    assert table_of(f"{name}:{capacity}") == (name, capacity)


@pytest.mark.slow
@given(st.text(max_size=40))
def test_any_text_is_a_table_or_a_config_error(text):
    try:
        name, size = table_of(text)
    except ConfigError:
        return
    assert text.startswith(name)
    assert size


# -- what is wrong ---------------------------------------------------------------------------------

MISTAKES = [
    (
        "tables: {r: {capacity: 10, samplr: uniform}}",
        "tables.r.samplr: there is no such setting: did you mean 'sampler'?",
    ),
    (
        "tables: {r: {capacity: 10, sampler: unifom}}",
        "tables.r.sampler: there is no kind 'unifom': did you mean 'uniform'?",
    ),
    (
        "tables: {r: {capacity: 10, sampler: {kind: uniform, alpha: 1}}}",
        "tables.r.sampler.alpha: there is no such setting",
    ),
    (
        "tables: {r: {capacity: 10, sampler: {kind: prioritized, alpha: 9}}}",
        "tables.r.sampler: alpha=9: it must be a number from 0 to 2",
    ),
    ("tables: {r: {capacity: ten}}", "'ten': a size is a number and a unit, as in '8GiB'"),
    (
        "tables: {r: {capacity: 8GiB, max_bytes: 9GiB}}",
        "tables.r: capacity='8GiB' and max_bytes='9GiB': give bytes once",
    ),
    ("tables: {r: true}", "tables.r: expected a map, got True"),
    (
        "tables: {r: {capacity: 10, schema: {obs: {dtype: floot32}}}}",
        "schema.obs: dtype 'floot32' of a Field is unknown",
    ),
    (
        "tables: {r: {capacity: 10, schema: {index: int8}}}",
        "tables.r.schema: a step has the field 'index'",
    ),
    (
        "tables: {r: {capacity: 10, sampler: prioritized, limiter: min_size}}",
        "tables.r.limiter: there is no kind 'min_size': say rate_limiter, with min_size_to_sample",
    ),
    (
        "tables: {r: {capacity: 10}}\nsessions: 5",
        "sessions: there is no such setting: did you mean 'limits.sessions'?",
    ),
    (
        "tables: {r: {capacity: 10, sampler: {alpha: 1}}}",
        "tables.r.sampler: it needs a 'kind': one of balanced, fifo",
    ),
    ("tables: {r: {}}", "tables.r: it needs a capacity, as in 1000000 or 8GiB"),
    ("tables: [1]", "tables: expected a map, got a list"),
    ("tables:", "tables: expected a map, got nothing"),
    ("", "tables: it is empty: give one"),
    (
        "tables: {a: {capacity: 10}}\nlimits: {message_bytes: 64GiB}",
        "limits: message_bytes=68719476736 is above in_flight_bytes",
    ),
    ("tables: {a: {capacity: 10}}\nheartbeat_s: 20", "silence_s=10 is less than two heartbeats"),
    (
        "tables: {a: {capacity: 10}}\nheartbeat_s: .nan",
        "heartbeat_s: expected float > 0.0, got nan",
    ),
    (
        "tables: {a: {capacity: 10}}\nsecurity: {key: x}",
        "security.key: there is no such setting: did you mean 'keys'?",
    ),
    ("tables: !!python/object/apply:os.getcwd []", "it is not YAML"),
    ("- 1", "expected a map, got a list"),
]


@pytest.mark.parametrize(
    ("text", "said"), MISTAKES, ids=[text.replace("\n", " ")[:60] for text, _ in MISTAKES]
)
def test_a_mistake_is_named_with_its_file_and_place(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'feeder.yaml'}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        (1, "heartbeat: 3", "heartbeat: there is no such"),
        (3, "replay: {capacity: lots}", "tables.replay: capacity='lots'"),
        (3, "replay: {sampler: {prioritized: {alpha: 0.6}}}", "tables.replay.sampler: it needs a"),
        (3, "r: {schema: {o: {p: {dtype: flot32}}}}", "tables.r.schema.o.p: dtype 'flot32'"),
        (3, "r: {schema: {t.u: {dtype: bool, shap: []}}}", "tables.r.schema.t.u.shap: there is no"),
        (3, "replay: {sampler: {kind: prioritized, alpha: high}}", "tables.replay.sampler: alpha="),
        (2, "3: {capacity: 4}", "tables: expected str"),
        (4, "limits: {sessions: 0}", "limits.sessions: expected int >= 1, got 0"),
        (4, "limits: {message_bytes: x}", "limits.message_bytes: message_bytes='x'"),
    ],
)
def test_a_mistake_is_said_with_the_line_and_the_key_that_was_written(tmp_path, line, text, said):
    file = tmp_path / "feeder.yaml"
    lines = ["silence_s: 20", "tables:", "  other: 5", "heartbeat_s: 3"]
    lines[line - 1 + (text[0] == "3")] = f"  {text}" if line in (2, 3) else text
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "\n".join(lines))
    assert str(caught.value).startswith(f"{file}: line {line}: {said}")
    (tmp_path / "cluster.yaml").write_text("\n  ".join(["shards: 2\nfeeder:", *lines]))
    with pytest.raises(ConfigError) as caught:
        ClusterSettings.load(tmp_path / "cluster.yaml")
    assert f"line {line + 2}: feeder.{said}" in str(caught.value)


def test_all_mistakes_are_said_at_once_in_the_order_of_the_file(tmp_path):
    text = """\
heartbeat: 3
tables:
  replay: {capacity: lots, sampler: {prioritized: {alpha: 0.6}}}
  other:
    capacity: 100
    schema: {obs: {dtype: flot32}}
    sampler: {kind: prioritized, alpha: high}
limits: {sessions: 0,
         message_bytes: x}
"""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    lines = [int(one.split("line ")[1].split(":")[0]) for one in str(caught.value).split("\n")]
    assert lines == [1, 3, 6, 7, 8, 9]
    with pytest.raises(ConfigError, match=r"(?s)tables.a: capacity='lots'.*tables.b: capacity='x'"):
        ServerSettings.of(["a:lots", "b:x"])


def test_a_table_that_does_not_fit_is_named_and_the_others_are_closed(tmp_path):
    settings = load(
        tmp_path,
        "tables: {a: {capacity: 9, schema: {x: int8}}, b: {capacity: 1B, schema: {x: {dtype: int8, "
        "shape: [99]}}}}",
    )
    with pytest.raises(ConfigError, match=r"^tables\.b: "):
        settings.make_tables()


WORDS = [
    "capacity",
    "sampler",
    "limiter",
    "kind",
    "size",
    "schema",
    "beta",
    "dtype",
    "shape",
    "x",
    "uniform",
    "linear",
    "queue",
]
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(WORDS)


def _maps(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(WORDS) | st.integers(), inner, max_size=4
    )


@given(st.recursive(LEAVES, _maps, max_leaves=12))
def test_any_plain_value_is_a_table_or_a_config_error_with_its_path(value):
    said = ""
    try:
        ServerSettings.from_plain({"t": value})
    except ConfigError as error:
        said = str(error)
    assert not said or said.startswith("tables.t")


def test_a_folder_for_checkpoints_is_relative_to_its_file_and_the_command_line_overrules_it(
    tmp_path,
):
    path = tmp_path / "feeder.yaml"
    path.write_text("tables: {replay: 10}\ncheckpoint: {path: saves}\n")
    assert ServerSettings.load(path).checkpoint.path == str(tmp_path / "saves")
    assert ServerSettings.of(config=path, checkpoint="/else/where").checkpoint.path == "/else/where"
    assert ServerSettings.of(["replay:10"]).checkpoint.path is None
    path.write_text("tables: {replay: 10}\ncheckpoint: {folder: saves}\n")
    with pytest.raises(ConfigError, match=r"checkpoint\.folder: there is no such setting"):
        ServerSettings.load(path)
