"""Batches of a queue are leased until their consumer has used them: none vanishes with a loader,
a learner or a connection.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from client_rig import PATIENCE_S, FakeFeeder
from fake_device import FakeBackend
from test_client_shared import patience, queue, serving

from async_loader import AsyncDataLoader
from async_loader.errors import SchemaError, Timeout, Unsupported
from async_loader.feeder import connect, wire
from async_loader.feeder.wire import Type
from async_loader.source import Leasing

BATCH = 4


def taken(loader, count=None):
    """``count`` batches, or all that there are for now, as (x, redelivered)."""
    found = []
    with contextlib.suppress(Timeout):
        for batch in itertools.islice(loader, count):
            found += zip(batch["x"].tolist(), batch["redelivered"].tolist(), strict=True)
    return found


def rest(client, count, batch_size=BATCH):
    """At least ``count`` rows, however long they take."""
    with AsyncDataLoader(client.table("t").source(), batch_size, timeout_s=60.0) as loader:
        found = taken(loader, count // batch_size)
    with AsyncDataLoader(client.table("t").source(), 1, timeout_s=0.3) as loader:
        return found + taken(loader)


@pytest.fixture
def ready(feeder, client):
    """A source of a queue, with three batches that have come."""
    feeder.leases = None
    source = client.table("replay").source(prefetch=4)
    with pytest.raises(Timeout):
        source.plan(BATCH, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 4)
    feeder.do(lambda feeder: [feeder.batch(1, i, 10 * i) for i in range(3)])
    feeder.until(lambda: client.stats().batches == 3)
    return source


def closing(feeder):
    """What the last CLOSE_READER said: arrived, seen, unseen."""
    feeder.until(lambda: feeder.seen[Type.CLOSE_READER])
    body = [message.body for message in feeder.messages if message.type is Type.CLOSE_READER][-1]
    leases = list(body.unused)
    return body.arrived, leases[: body.seen], leases[body.seen :]


# -- what is said when -----------------------------------------------------------------------------


def test_a_batch_is_given_back_when_its_consumer_asks_for_another_and_not_when_it_was_planned(
    feeder, ready
):
    assert isinstance(ready, Leasing)
    first, second, third = (ready.plan(BATCH, patience()) for _ in range(3))
    assert ready.hand_out(first.lease)
    assert ready.hand_out(second.lease)
    assert ready.hand_out(second.lease), "as after a call that was interrupted"
    assert not feeder.seen[Type.RETURN]
    ready.settle(second.lease)
    ready.settle(second.lease)
    ready.settle(third.lease)  # which was never handed out
    feeder.do(lambda feeder: feeder.batch(1, 3, 30))
    ready.plan(BATCH, patience())
    feeder.until(lambda: feeder.seen[Type.RETURN] == 1)
    returned = [
        list(message.body.leases) for message in feeder.messages if message.type is Type.RETURN
    ]
    assert returned == [[1]]


def test_a_source_that_closes_gives_back_what_was_not_handed_out(feeder, ready):
    plans = [ready.plan(BATCH, patience()) for _ in range(2)]
    assert ready.hand_out(plans[0].lease)
    ready.close()
    assert closing(feeder) == (3, [], [1, 2])
    assert not ready.hand_out(plans[1].lease), "another learner has it by now"


def test_a_reader_that_failed_gives_back_what_was_not_handed_out(feeder, ready):
    plans = [ready.plan(BATCH, patience()) for _ in range(2)]
    for one in plans:
        assert ready.hand_out(one.lease)
    error = wire.Error.of(wire.ErrorCode.UNSUPPORTED, "a sampler that cannot draw")
    feeder.do(lambda feeder: feeder.tell(1, error))
    assert closing(feeder) == (3, [], [2])
    with pytest.raises(Unsupported, match="cannot draw"):
        ready.plan(BATCH, patience())


def test_a_client_that_closes_waits_for_no_feeder_that_is_lost(address):
    with FakeFeeder(address) as feeder:
        client = connect(address, timeout_s=30)
        feeder.leases = None
        source = client.table("replay").source(prefetch=4)
        with pytest.raises(Timeout):
            source.plan(BATCH, patience(0.02))
        feeder.until(lambda: feeder.granted[1] == 4)
        del source
    begun = time.monotonic()
    client.close(PATIENCE_S)
    assert time.monotonic() - begun < PATIENCE_S


def test_batches_whose_session_is_over_are_not_handed_out_since_the_feeder_delivers_them_again(
    feeder, ready
):
    plans = [ready.plan(BATCH, patience()) for _ in range(2)]
    assert ready.hand_out(plans[0].lease)
    feeder.forget_sessions()
    feeder.until(lambda: feeder.seen[Type.OPEN_READER] == 2 and feeder.granted[1] == 4)
    assert not ready.hand_out(plans[1].lease)
    ready.settle(plans[0].lease)
    feeder.do(lambda feeder: feeder.batch(1, 0, 80))
    assert ready.plan(BATCH, patience()).batch["index"][0] == 80, "those in the inbox are no more"
    assert not feeder.seen[Type.RETURN]


def test_batches_of_a_feeder_that_is_no_more_are_handed_out_since_nothing_else_has_them(
    feeder, ready
):
    plans = [ready.plan(BATCH, patience()) for _ in range(2)]

    def another(feeder):
        feeder.incarnation = os.urandom(16)
        feeder.sessions.clear()

    feeder.do(another)
    feeder.until(lambda: feeder.seen[Type.OPEN_READER] == 2 and feeder.granted[1])
    assert [ready.hand_out(plan.lease) for plan in plans] == [True, True]
    assert ready.plan(BATCH, patience()).batch["reward"][0] == 20, "the third, from the inbox"


# -- through a loader ------------------------------------------------------------------------------


def test_the_batch_at_which_a_learner_failed_comes_again_and_says_so(tmp_path):
    with serving(tmp_path, queue(), filled=40) as (_, client):
        with (
            contextlib.suppress(ZeroDivisionError),
            AsyncDataLoader(client.table("t").source(), BATCH, timeout_s=60.0) as loader,
        ):
            found = taken(loader, 2)
            raise ZeroDivisionError
        found += rest(client, 40 - BATCH)
    assert sorted(found) == sorted(
        [(x, False) for x in range(40)] + [(x, True) for x in range(BATCH, 2 * BATCH)]
    )


def odd(batch):
    """Fails for the second batch."""
    if batch["x"][0] == BATCH:
        raise LookupError("an odd batch")
    return batch


def shortened(batch):
    return {"x": batch["x"][:2] if batch["x"][0] == BATCH else batch["x"]}


WAYS_TO_FAIL = {
    "transform": lambda: {"transform": odd},
    "into": lambda: {"transform": shortened, "into": {"x": torch.zeros(BATCH, dtype=torch.int64)}},
    "device": lambda: {"transform": odd, "device": FakeBackend()},
}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("way", list(WAYS_TO_FAIL))
def test_a_batch_whose_function_failed_is_used_as_any_other(tmp_path, way, on_error):
    how, found = WAYS_TO_FAIL[way](), []
    with serving(tmp_path, queue(), filled=40) as (_, client):
        source = client.table("t").source()
        with AsyncDataLoader(source, BATCH, on_error=on_error, timeout_s=60.0, **how) as loader:
            while len(found) < 40 - BATCH:
                with contextlib.suppress(LookupError, SchemaError):
                    found += np.asarray(next(loader)["x"]).tolist()
        assert rest(client, 0) == []
    assert found == [x for x in range(40) if x // BATCH != 1]


LEARNER = """
import sys
from async_loader import AsyncDataLoader
from async_loader.feeder import connect
client = connect(sys.argv[1])
loader = AsyncDataLoader(client.table("t").source(), 4, prefetch=int(sys.argv[2]))
for _ in range(3):
    print(next(loader)["x"].tolist(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [1, 8])
def test_a_killed_learner_takes_no_batch_with_it(tmp_path, prefetch):
    with serving(tmp_path, queue(), filled=80, silence_s=1.0, heartbeat_s=0.2) as (feeder, client):
        learner = subprocess.Popen(
            [sys.executable, "-c", LEARNER, feeder.address, str(prefetch)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        seen = [x for _ in range(3) for x in eval(learner.stdout.readline())]
        learner.kill()
        learner.communicate()
        found = []
        with AsyncDataLoader(client.table("t").source(), BATCH, timeout_s=60.0) as loader:
            while {x for x, _ in found} | set(seen) != set(range(80)):
                found += taken(loader, 1)
    assert {x for x, again in found if not again}.isdisjoint(seen), "what comes again says so"
    assert len({x for x, again in found if not again}) == sum(not again for _, again in found)


def test_a_source_that_is_dropped_gives_back_what_was_handed_out_too(feeder, client):
    feeder.leases = None
    source = client.table("replay").source(prefetch=4)
    with pytest.raises(Timeout):
        source.plan(BATCH, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 4)
    feeder.do(lambda feeder: [feeder.batch(1, i, 10 * i) for i in range(3)])
    feeder.until(lambda: client.stats().batches == 3)
    plans = [source.plan(BATCH, patience()) for _ in range(2)]
    assert source.hand_out(plans[0].lease)
    del source, plans
    assert closing(feeder) == (3, [0], [1, 2])


def test_two_learners_that_come_and_go_use_each_row_once(tmp_path):
    found = []
    with serving(tmp_path, queue(), filled=200) as (_, client):
        lasting = AsyncDataLoader(client.table("t").source(), 3, prefetch=2, timeout_s=60.0)
        for prefetch in (1, 4, 8):
            with AsyncDataLoader(
                client.table("t").source(), BATCH, prefetch=prefetch, timeout_s=60.0
            ) as loader:
                found += taken(loader, 2) + taken(lasting, 3)
        lasting.close()
        found += rest(client, 200 - len(found), 1)
    assert sorted(found) == [(x, False) for x in range(200)]


def test_rows_that_were_cleared_do_not_come_again():
    with connect("embedded", tables={"q": {"queue": 64}}, timeout_s=PATIENCE_S) as client:
        table = client.table("q")
        with table.writer() as writer:
            for i in range(32):
                writer.append(x=i)
            writer.flush()
            with AsyncDataLoader(table.source(), 8) as loader:
                next(loader)
                table.clear()
            for i in range(100, 108):
                writer.append(x=i)
            writer.flush()
            with AsyncDataLoader(table.source(), 8, timeout_s=PATIENCE_S) as loader:
                assert next(loader)["x"].tolist() == list(range(100, 108))


def test_a_loader_closes_the_source_that_it_made():
    with connect("embedded", tables={"t": 100}, timeout_s=PATIENCE_S) as client:
        table = client.table("t")
        table.writer().append(x=1)
        with AsyncDataLoader(table, 4) as made, AsyncDataLoader(table.source(), 4) as other:
            next(made), next(other)
        deadline = time.monotonic() + PATIENCE_S
        while client.status()["tables"]["t"]["readers"] != 1:
            assert time.monotonic() < deadline
