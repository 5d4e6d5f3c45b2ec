"""Queues and connections that carry tensors through shared memory."""

from __future__ import annotations

import multiprocessing
from multiprocessing import resource_sharer

import numpy as np
import pytest
import torch

from async_loader.compat import gluon

fork = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _no_sharer_is_left():
    yield
    resource_sharer.stop()  # Python's own thread that hands out descriptors, and its socket


def _double(inbox, outbox):
    sent = inbox.get()
    sent["x"] *= 2  # in place: the sender sees it
    outbox.put((sent["x"].is_shared(), sent["name"]))


@pytest.mark.parametrize("kind", [gluon.data.Queue, gluon.data.SimpleQueue])
def test_a_tensor_travels_as_the_memory_that_it_lies_in(kind):
    inbox, outbox = kind(ctx=fork), fork.SimpleQueue()
    process = fork.Process(target=_double, args=(inbox, outbox))
    process.start()
    x = torch.arange(3)
    inbox.put({"x": x, "name": "doubled"})
    assert outbox.get() == (True, "doubled")
    process.join()
    assert x.tolist() == [0, 2, 4]
    if hasattr(inbox, "join_thread"):
        inbox.close()
        inbox.join_thread()


def test_a_connection_shares_tensors_and_is_otherwise_itself():
    ours, theirs = (gluon.data.ConnectionWrapper(end) for end in multiprocessing.Pipe())
    x = torch.zeros(2)
    ours.send([x, np.arange(2), "text"])
    assert theirs.poll(10)  # the connection's own method
    tensor, array, text = theirs.recv()
    tensor += 1
    assert tensor.is_shared()
    assert x.tolist() == [1, 1]
    assert array.tolist() == [0, 1]
    assert text == "text"
    ours.close()
    with pytest.raises(EOFError):
        theirs.recv()
    theirs.close()
