"""slime's and miles' data source, on a table of rollouts."""

from __future__ import annotations

import contextlib
import enum
import inspect
import itertools
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from async_loader import Ragged, Rollouts, connect
from async_loader.compat.slime import SCHEMA, DataSource, generate_rollout
from async_loader.errors import Closed, ConfigError, SchemaError, Timeout

pytestmark = pytest.mark.usefixtures("near_feeders")

TABLE = {"schema": SCHEMA, "batch": 4, "max_lag": 1, "size": 2}


class Published:
    """The interface of slime 624b824; miles 31f1ca9 has `get_buffer_length`, and no length."""

    def get_samples(self, num_samples: int): ...

    def add_samples(self, samples): ...

    def save(self, rollout_id): ...

    def load(self, rollout_id=None): ...

    def __len__(self): ...

    def get_buffer_length(self): ...


@dataclass
class Sample:
    """The fields of the published one that are read or set."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    status: Status = Status.PENDING


def sample(number, response=2, **fields):
    values = {
        "tokens": [number] * (3 + response), "response_length": response, "reward": 1.0,
        "rollout_log_probs": [-0.5] * response, "status": Sample.Status.COMPLETED, **fields,
    }  # fmt: skip
    return Sample(**values)


@pytest.fixture(params=["here", "served"])
def table(request):
    if request.param == "here":
        with Rollouts(**TABLE) as one:
            yield one
    else:
        with connect("embedded", tables={"math": Rollouts(**TABLE)}) as client:
            yield client.table("math")


@pytest.fixture
def args(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return SimpleNamespace(rollout_batch_size=4, save=str(tmp_path), load=str(tmp_path))


@contextlib.contextmanager
def generator(table, prompts, most=100):
    """``most``: groups until it dies."""

    def generate():
        with contextlib.suppress(Closed):
            for count, group in enumerate(table.groups(prompts, timeout_s=60)):
                if count == most:
                    break
                for response in (1, 2):
                    group.append(
                        tokens=[group.number] * (2 + response), response_length=response,
                        loss_mask=[0, 0, *[1] * response], truncated=response == 2, reward=0.5,
                        rollout_log_probs=[0, 0, *[-1.0] * response],
                    )  # fmt: skip

    thread = threading.Thread(target=generate)
    thread.start()
    yield
    thread.join(60)


def numbers(groups):
    return [group[0].tokens[0] for group in groups]


def test_the_source_has_the_published_signatures():
    for name in ("get_samples", "add_samples", "save", "load", "__len__", "get_buffer_length"):
        published = inspect.signature(getattr(Published, name)).parameters
        ours = inspect.signature(getattr(DataSource, name)).parameters
        assert [(one.name, one.default) for one in ours.values()] == [
            (one.name, one.default) for one in published.values()
        ]
    called = inspect.signature(generate_rollout).parameters  # fn(args, rollout_id, source, ...)
    assert [*called] == ["args", "rollout_id", "data_source", "evaluation"]


def test_groups_that_are_added_come_as_they_were(table, args):
    source = DataSource(args, table, Sample, timeout_s=10)
    given = [[sample(one), sample(one, 4, loss_mask=[1, 0, 1, 1])] for one in range(4)]
    given[1][0].status = Sample.Status.TRUNCATED
    given[2] = [sample(2)] * 3
    source.add_samples(given)
    assert len(source) == source.get_buffer_length() == 4
    groups = source.get_samples(4)
    assert list(map(len, groups)) == [2, 2, 3, 2]
    for group, back in zip(given, groups, strict=True):
        for one, other in zip(group, back, strict=True):
            assert other.tokens == one.tokens
            assert other.rollout_log_probs == one.rollout_log_probs
            assert other.loss_mask == one.loss_mask or [1] * one.response_length
            assert (other.status, other.reward) == (one.status, one.reward)
    assert [type(one) for one in (groups[0][0].tokens[0], groups[0][0].reward)] == [int, float]
    assert len({one.index for group in groups for one in group}) == 9
    assert len({one.group_index for group in groups for one in group}) == 4


def test_a_field_of_the_programs_own_is_an_attribute(args):
    schema = {**SCHEMA, "experts": Ragged("uint8", 2)}
    with Rollouts(schema, batch=4) as table:
        source = DataSource(args, table, Sample, timeout_s=10)
        one = sample(1)
        with pytest.raises(KeyError):
            source.add_samples([[one]])
        one.experts = np.ones((5, 2), np.uint8)
        source.add_samples([[one]] * 4)
        assert source.get_samples(1)[0][0].experts == [[1, 1]] * 5


def test_a_reward_may_come_later(table, args):
    source = DataSource(args, table, Sample, timeout_s=10)
    source.add_samples([[sample(one, reward=None)] for one in range(4)])
    members = table.members(["tokens"], ["reward"], timeout_s=10)
    for member in itertools.islice(members, 4):
        member.update(reward=2.0)
    assert [group[0].reward for group in source.get_samples(4)] == [2.0] * 4


def test_a_group_that_is_not_finished_is_refused(table, args):
    source = DataSource(args, table, Sample, timeout_s=10)
    for status in (Sample.Status.PENDING, Sample.Status.ABORTED):
        with pytest.raises(ConfigError, match=f"a sample is {status.value}"):
            source.add_samples([[sample(0), sample(0, status=status)]])
    with pytest.raises(SchemaError, match="differ in length"):
        source.add_samples([[sample(0, rollout_log_probs=None)]])
    assert len(source) == 0
    assert table.stats().free == table.stats().slots


def test_more_groups_than_the_learner_may_lag_behind_wait_for_it(table, args):
    source = DataSource(args, table, Sample, timeout_s=1)
    with pytest.raises(Timeout, match="8 slots"):
        source.add_samples([[sample(one)] for one in range(9)])
    assert numbers(source.get_samples(4)) == [0, 1, 2, 3]


def test_another_size_of_batches_is_refused(args):
    args.rollout_batch_size = 3
    with (
        Rollouts(**TABLE) as table,
        pytest.raises(ConfigError, match="rollout_batch_size=3, the table has batches of 4"),
    ):
        DataSource(args, table, Sample)


def test_evaluation_is_refused(table, args):
    source = DataSource(args, table, Sample)
    with pytest.raises(ConfigError, match="--eval-function-path"):
        generate_rollout(args, 0, source, evaluation=True)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_that_goes_on_trains_each_prompt_once(ahead, table, args):
    """``ahead``: rollouts that are made before the one before them is trained, as in slime's
    train_async.py; their save comes after.
    """
    source, trained = DataSource(args, table, Sample, timeout_s=60), []
    source.load(-1)
    with generator(table, range(20), most=14 + 4 * ahead):
        rollouts = [numbers(generate_rollout(args, one, source)) for one in range(ahead)]
        for rollout_id in range(3):
            rollouts.append(numbers(generate_rollout(args, rollout_id + ahead, source)))
            trained += rollouts[rollout_id]
            if rollout_id == 1:
                source.save(rollout_id)
                saved = list(trained)
    lost = DataSource(args, table, Sample, timeout_s=60)
    lost.load(1)
    with generator(table, range(20)):
        groups = [generate_rollout(args, one, lost) for one in range(2, 6)]
    assert groups.pop() == []
    assert sorted(saved + [one for group in groups for one in numbers(group)]) == [*range(20)]
    with pytest.raises(OSError, match="rollout_7"):
        lost.load(7)
