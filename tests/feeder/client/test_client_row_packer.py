"""What a step says of its episode's end, in its own fields or beside them."""

import numpy as np
import pytest

from async_loader.errors import SchemaError
from async_loader.feeder.client.row_packer import RowPacker
from async_loader.feeder.wire import TERMINATED, TRUNCATED
from async_loader.schema import Field, Schema

X = {"x": np.int64}
LINKED = {"x": Field((), np.dtype(np.int64), next="after")}
T, U = np.bool_, np.bool_


def flags_of(schema, step, terminated=False, truncated=False, final=None):
    packer = RowPacker(Schema.of(schema), 256, 1 << 20)
    step = {"x": 1, **step}
    return packer.step(step, terminated, truncated, final)[1]


@pytest.mark.parametrize(
    ("schema", "step", "said", "flags"),
    [
        (X, {}, {}, 0),
        (X, {}, {"terminated": True}, TERMINATED),
        (X, {}, {"truncated": True}, TRUNCATED),
        ({**X, "terminated": T}, {"terminated": True}, {}, TERMINATED),
        ({**X, "terminated": T}, {}, {"terminated": True}, TERMINATED),
        ({**X, "terminated": T}, {}, {"truncated": True}, TRUNCATED),
        ({**X, "terminated": T}, {"terminated": False}, {"truncated": True}, TRUNCATED),
        ({**X, "terminated": T, "truncated": U}, {"truncated": True}, {}, TRUNCATED),
        ({**X, "terminated": T, "truncated": U}, {"terminated": np.True_}, {}, TERMINATED),
        ({**X, "done": T}, {"done": True}, {}, TERMINATED),
        ({**X, "done": T}, {"done": False}, {}, 0),
    ],
)
def test_an_episode_ends_where_the_step_or_the_caller_says_so(schema, step, said, flags):
    assert flags_of(schema, step, **said) == flags


def test_a_truncated_step_that_is_shown_what_follows_needs_it():
    schema = {**LINKED, "truncated": U}
    with pytest.raises(SchemaError, match="a truncated step needs final_obs"):
        flags_of(schema, {"truncated": True})
    assert flags_of(schema, {"truncated": True}, final=7) == TRUNCATED
