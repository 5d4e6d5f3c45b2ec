"""How far behind the newest weights the steps are that come in."""

from __future__ import annotations

import numpy as np

from async_loader.feeder.server.policy_lag import PolicyVersions
from async_loader.schema import Schema


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
