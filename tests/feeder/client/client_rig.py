"""A scripted feeder in the test's process: three ROUTERs in a thread, driven by our wire. Does
what it is told, and no more.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import Counter, deque

import numpy as np
import zmq

from async_loader.feeder import wire
from async_loader.feeder.wire import Message, Plane, Type
from async_loader.lifecycle import EventFd
from async_loader.schema import Schema

OBS = Schema.of({"obs": ((2,), np.float32), "reward": np.float32})
PATIENCE_S = 30.0


class FakeFeeder:
    """Keeps what was inserted, as lists of rewards by producer. Hooks change what it does.

    Attributes
    ----------
    hooks : dict of Type to callable
        Called with (feeder, plane, route, message); True means that it was dealt with.
    seen : Counter of Type
    """

    def __init__(
        self,
        address,
        *,
        schema=OBS,
        heartbeat_s=0.05,
        silence_s=30.0,
        window=(1 << 24, 1 << 16),
        incarnation=None,
    ):
        self.address, self.schema, self.window = address, schema, window
        self.heartbeat_s, self.silence_s = heartbeat_s, silence_s
        self.incarnation = incarnation or secrets.token_bytes(16)
        self.hooks, self.seen, self.messages = {}, Counter(), []
        self.sessions, self.rows, self.next, self.producers = {}, {}, {}, {}
        self.inserts = []  # sequences, as they came
        self.readers, self.weights, self.parts, self.leases = {}, {}, {}, []
        self.granted, self.routes = Counter(), {}
        self.hold_acks = False
        self._asks, self._bell, self._stop = deque(), EventFd(), False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="fake-feeder")
        self._ready = threading.Event()
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    # -- the test's thread -------------------------------------------------------------------------

    def until(self, happened):
        """Wait until this holds, which is looked at after messages, and never in the middle of
        one.
        """
        with self._changed:
            assert self._changed.wait_for(happened, PATIENCE_S), "it did not happen"

    def do(self, what):
        """Call ``what(self)`` in the feeder's thread, and wait for it."""
        done = threading.Event()
        self._asks.append((what, done))
        self._bell.ring()
        assert done.wait(PATIENCE_S)

    def forget_sessions(self):
        """As one that was started anew: it knows no session."""
        self.do(lambda feeder: feeder.sessions.clear())

    def close(self):
        self._stop = True
        self._bell.ring()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- its own thread ----------------------------------------------------------------------------

    def _run(self):
        context = zmq.Context()
        self.sockets = {}
        for plane, end in zip(Plane, ("", ".insert", ".pull"), strict=True):
            socket = self.sockets[plane] = context.socket(zmq.ROUTER)
            socket.linger = 0
            socket.bind(self.address + end)
        self._ready.set()
        poller = zmq.Poller()
        for socket in [*self.sockets.values(), self._bell.fileno()]:
            poller.register(socket, zmq.POLLIN)
        while not self._stop:
            poller.poll()
            self._bell.clear()
            while self._asks:
                what, done = self._asks.popleft()
                what(self)
                done.set()
            with self._changed:
                for plane, socket in self.sockets.items():
                    with contextlib.suppress(zmq.Again):
                        while True:
                            route, *frames = socket.recv_multipart(zmq.NOBLOCK)
                            self._one(plane, route, wire.decode(frames))
                self._changed.notify_all()
        for socket in self.sockets.values():
            socket.close()
        context.term()
        self._bell.close()

    def _one(self, plane, route, message):
        self.seen[message.type] += 1
        if message.type is not Type.PING:
            self.messages.append(message)
        hook = self.hooks.get(message.type)
        if hook is not None and hook(self, plane, route, message):
            return
        if message.type is Type.HELLO:
            self.welcome(route, message)
        elif message.session not in self.sessions:
            self.error(plane, route, message, wire.ErrorCode.UNKNOWN_SESSION)
        else:
            self.routes[plane] = route
            getattr(self, "on_" + message.type.name.lower())(plane, route, message)

    def say(self, plane, route, message):
        self.sockets[plane].send_multipart([route, *wire.encode(message)])

    def error(self, plane, route, message, code, expected=None):
        self.say(
            plane, route, message.reply(wire.Error.of(code, f"scripted {code.name}", expected))
        )

    def welcome(self, route, message):
        session = secrets.randbits(63)
        self.sessions[session] = {}
        body = wire.Welcome(
            incarnation=self.incarnation,
            heartbeat_s=self.heartbeat_s,
            silence_s=self.silence_s,
            insert_endpoint=self.address + ".insert",
            pull_endpoint=self.address + ".pull",
            memory_endpoint=None,
            limits=wire.Limits(),
            tables=("replay",),
        )
        self.say(Plane.CONTROL, route, Message(body, session))

    def on_end(self, plane, route, message):
        del self.sessions[message.session]

    def on_ping(self, plane, route, message):
        self.say(plane, route, message.reply(wire.Pong()))

    def on_open_writer(self, plane, route, message):
        body = message.body
        if self.schema is None:
            if body.schema is None:
                return self.error(plane, route, message, wire.ErrorCode.SCHEMA)
            self.schema = wire.schema_of(body.schema)
        self.layout = wire.RowLayout.of(self.schema)
        self.producers[message.session, message.number] = body.producer
        resumed = body.producer in self.next
        applied = self.next.setdefault(body.producer, 0)
        self.rows.setdefault(body.producer, [])
        reply = wire.Writer(
            schema=wire.spec_of(self.schema),
            applied=applied,
            window_bytes=self.window[0],
            window_rows=self.window[1],
            resumed=resumed,
        )
        return self.say(plane, route, message.reply(reply, schema=self.layout.schema_id))

    def on_insert(self, plane, route, message):
        producer = self.producers.get((message.session, message.number))
        if producer is None:
            return self.error(plane, route, message, wire.ErrorCode.UNKNOWN_WRITER)
        self.inserts.append(message.sequence)
        if message.sequence > self.next[producer]:
            return self.error(plane, route, message, wire.ErrorCode.UNKNOWN_WRITER)
        if message.sequence == self.next[producer]:
            self.next[producer] += 1
            steps = wire.read_insert(message.body, self.layout)
            self.rows[producer] += zip(
                steps.streams.tolist(),
                steps.flags.tolist(),
                steps.columns[self.reward].tolist(),
                strict=True,
            )
        if not self.hold_acks:
            self.ack(route, message, producer)
        return None

    @property
    def reward(self):
        return [field.name for field in self.schema.fields].index("reward")

    def ack(self, route, message, producer):
        self.say(Plane.INSERT, route, message.reply(wire.Ack(self.next[producer], *self.window)))

    def on_close_writer(self, plane, route, message):
        self.say(plane, route, message.reply(wire.Done()))

    def on_open_reader(self, plane, route, message):
        self.batch_schema = OBS.with_field("index", np.int64)
        self.granted[message.number] = 0
        self.readers[message.number] = message
        reply = wire.Reader(
            schema=wire.spec_of(self.batch_schema),
            leased=bool(self.leases is None),
            transport="tcp",
        )
        self.say(plane, route, message.reply(reply, schema=wire.schema_id(self.batch_schema)))

    def on_close_reader(self, plane, route, message):
        self.say(plane, route, message.reply(wire.Done()))

    def on_pull(self, plane, route, message):
        self.granted[message.number] = max(self.granted[message.number], message.body.granted)

    def batch(self, number, sequence, first=0, flags=0):
        """In the feeder's thread: send a batch to this reader; rewards count from ``first``."""
        opened = self.readers[number]
        n = opened.body.batch_size
        rewards = np.arange(first, first + n, dtype=np.float32)
        columns = [np.stack([rewards, -rewards], 1), rewards, np.arange(first, first + n)]
        form = wire.BatchForm.of(self.batch_schema, n)
        body = form.batch(columns)
        self.say(
            Plane.PULL, self.routes[Plane.PULL],
            Message(body, opened.session, sequence, number, form.schema_id, flags),
        )  # fmt: skip

    def tell(self, number, body):
        """In the feeder's thread: something on the pull plane for this reader."""
        opened = self.readers[number]
        self.say(Plane.PULL, self.routes[Plane.PULL], Message(body, opened.session, 0, number))

    def on_return(self, plane, route, message):
        pass

    def on_prioritize(self, plane, route, message):
        self.say(plane, route, message.reply(wire.Applied(message.body.count - 1, 1)))

    def on_about(self, plane, route, message):
        schema = None if self.schema is None else wire.spec_of(self.schema)
        reply = wire.AboutReply(
            schema=schema, capacity=None, nbytes=None, limiter=None, sampler="", stats={}
        )
        self.say(plane, route, message.reply(reply))

    def on_status(self, plane, route, message):
        self.say(plane, route, message.reply(wire.StatusReply({"fine": True})))

    def on_drain(self, plane, route, message):
        self.say(plane, route, message.reply(wire.Done()))

    def on_publish(self, plane, route, message):
        body = message.body
        if not body.offset:
            self.parts[body.name] = (body.specs, bytearray())
        specs, whole = self.parts[body.name]
        assert body.offset == len(whole)
        whole += message.data
        if len(whole) == body.total_bytes:
            self.weights[body.name] = (body.version, specs, bytes(whole))
        self.say(plane, route, message.reply(wire.Published(newest=True)))

    def on_latest(self, plane, route, message):
        body = message.body
        version, specs, whole = self.weights.get(body.name, (None, (), b""))
        if version is None or (
            body.version is None and body.newer_than is not None and version <= body.newer_than
        ):
            return self.say(
                plane, route, message.reply(wire.Weights(name=body.name, version=version))
            )
        offset = body.offset if body.version == version else 0
        part = whole[offset : offset + min(body.most, 1000)]
        reply = wire.Weights(
            name=body.name,
            version=version,
            total_bytes=len(whole),
            offset=offset,
            specs=() if offset else specs,
        )
        return self.say(plane, route, message.reply(reply, data=part))


def make_impatient(client, silence_s=0.2):
    """From here on this client takes so little silence for the end of its session, but not of
    the next one.
    """
    client._connection.session.silence_s = silence_s


def rewards(feeder):
    """Of all rows that are steps, producer after producer."""
    return [
        reward
        for rows in feeder.rows.values()
        for _, flags, reward in rows
        if not flags & wire.FINAL
    ]


def step(i):
    return {"obs": np.full(2, i, np.float32), "reward": float(i)}
