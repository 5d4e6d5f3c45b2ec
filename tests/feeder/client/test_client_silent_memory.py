"""A feeder whose memory socket never answers, while it answers everything else: no client waits for
that longer than `ANSWER_S`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator

import pytest
from test_client_shared import LARGE, check, patience, replay, rows, serving

from async_loader.errors import Unsupported
from async_loader.feeder import memory_offer
from async_loader.feeder.client.client import Client

ANSWER_S = 0.3


@contextlib.contextmanager
def silent(folder, monkeypatch) -> Iterator[tuple[Client, list[socket.socket]]]:
    """A client of a feeder whose memory socket was replaced by one that never answers."""
    monkeypatch.setattr(memory_offer, "ANSWER_S", ANSWER_S)
    with (
        serving(folder, replay(LARGE), schema=LARGE, filled=0) as (feeder, client),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf,
    ):
        os.unlink(feeder.memory)
        deaf.bind(feeder.memory)
        deaf.listen(8)
        with client.table("t").writer() as writer:
            writer.extend(rows(2, LARGE))
        yield client, deaf


def test_batches_that_cannot_come_in_shared_memory_come_over_the_socket(
    tmp_path, monkeypatch, caplog
):
    with silent(tmp_path, monkeypatch) as (client, _), caplog.at_level(logging.WARNING):
        source = client.table("t").source()
        begun = time.monotonic()
        check(source.plan(32, patience(20)).batch, 32)
        assert time.monotonic() - begun >= ANSWER_S
        assert source.transport == "tcp"
        (record,) = caplog.records
        assert "does not answer: timed out" in record.getMessage()
        source.close()


def test_a_source_that_has_to_use_shared_memory_says_that_the_feeder_does_not_answer(
    tmp_path, monkeypatch
):
    with silent(tmp_path, monkeypatch) as (client, _):
        source = client.table("t").source(transport="shm")
        with pytest.raises(Unsupported, match=r"memory socket .* does not answer.*'auto' or 'tcp'"):
            source.plan(32, patience(20))
        source.close()


def test_rows_and_samples_go_on_over_the_socket_and_the_offer_is_withdrawn(tmp_path, monkeypatch):
    with silent(tmp_path, monkeypatch) as (client, _):
        with client.table("t").writer() as writer:
            for i in range(3):
                writer.extend(rows(100, LARGE, 100 * i))
                writer.flush()
            assert writer._channel.memory._asked
            assert not writer._channel.memory.taken
            writer.extend(rows(100, LARGE, 300))
        for _ in range(3):
            check(client.table("t").sample(8))
        ((_, source),) = client._sample_readers["t"]._idle
        assert source.transport == "tcp"
        assert source._channel.slots is None
        assert client.status()["tables"]["t"]["inserted"] == 402
