"""How far behind the newest weights the steps are that come in."""

from __future__ import annotations

import numpy as np

from async_loader.feeder.server.policy_lag import PolicyVersions, Publications, lags
from async_loader.schema import Schema


def published(*moments: tuple[int, float], name: str = "policy") -> Publications:
    made = Publications()
    for version, moment in moments:
        made.add(name, version, moment)
    return made


def test_a_step_says_its_policy_by_a_field_named_after_the_weights():
    fields = {
        "obs": ((2,), np.float32),
        "policy_version": np.int64,
        "critic_version": np.uint8,
        "_version": np.int64,
    }
    others = {"arm_version": np.float32, "leg_version": ((2,), np.int64)}
    schema, newest = Schema.of(fields | others), {}
    names = [field.name for field in schema.fields]
    columns = [np.zeros(3) for _ in names]
    columns[names.index("policy_version")] = np.array([4, 5, 0])  # a final observation has none
    columns[names.index("critic_version")] = np.array([2, 2, 2], np.uint8)
    made_by = PolicyVersions(schema)
    made_by.note(columns, newest)
    assert newest == {"policy": 5, "critic": 2}
    columns[names.index("policy_version")] = np.array([0])
    made_by.note(columns, newest)
    assert newest == {"policy": 5, "critic": 2}


def test_the_lag_is_that_of_the_writer_furthest_behind():
    known = published((10, 1.0), (20, 3.0), (30, 4.5))
    found = lags([{"policy": 30}, {"policy": 10}, {}], known)
    assert found == {"policy": {"newest": 30, "oldest": 10, "lag": 20, "lag_s": 3.5}}
    assert lags([{"policy": 30}], known)["policy"]["lag"] == 0
    # of weights that no client published
    assert lags([{"critic": 3}], known) == {"critic": {"newest": 3, "oldest": 3}}
    assert known.ages(5.0) == {"policy": 0.5}


def test_the_number_of_remembered_publications_is_bounded():
    known = published(*((version, float(version)) for version in range(10_000)))
    assert known.behind("policy", 9_990) == (9, 9.0)
    lag, seconds = known.behind("policy", 3)
    assert lag == 9_996
    assert 4_000 < seconds < 5_000  # at least
    assert sum(map(len, known._at.values())) < 5_000
