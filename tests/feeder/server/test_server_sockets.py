"""Real sockets: clients of libzmq are served; a peer that floods, stops or breaks the rules
harms only itself.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket

import numpy as np
import psutil
import pytest
import zmq
from server_rig import Clock
from zmq.utils.monitor import parse_monitor_message
from zmtp_rig import COMMAND, LONG, Splitter, frame, framed, greeting, opening, ping

from async_loader.feeder.curve_keys import apply_client_keys, curve_of, load_server_keys
from async_loader.feeder.server import sockets as module
from async_loader.feeder.server.sockets import ServerSockets
from async_loader.feeder.wire import Limits, Plane
from async_loader.lifecycle import Deadline

PATIENCE_S = 30.0
CONTROL, INSERT, PULL = Plane
GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


def over(scheme: str, folder) -> dict[Plane, str]:
    return {
        one: "tcp://127.0.0.1:*" if scheme == "tcp" else f"ipc://{folder}/{one.value}"
        for one in Plane
    }


@pytest.fixture(params=["tcp", "ipc"])
def where(request, tmp_path):
    return over(request.param, tmp_path)


@pytest.fixture
def ports(where):
    with contextlib.closing(ServerSockets(where, Limits())) as one:
        yield one


@pytest.fixture(scope="module", autouse=True)
def _settling():
    """Two ends of a connection of the loopback, see `settle`."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            _settling_ends[:] = one, other
            yield
            _settling_ends.clear()


_settling_ends: list[socket.socket] = []


def settle() -> None:
    """What was sent before over the loopback has come. On a busy machine the kernel puts it off,
    but keeps the order.
    """
    for one, other in (_settling_ends, _settling_ends[::-1]):
        one.send(b"x")
        assert other.recv(1) == b"x"


def connected(
    ports: ServerSockets, plane: Plane = CONTROL, data: bytes | None = None
) -> socket.socket:
    """A raw peer that has said ``data``: unless told otherwise, what a client says before its
    first message.
    """
    endpoint = ports.endpoints[plane]
    if endpoint.startswith("ipc://"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(endpoint.removeprefix("ipc://"))
    else:
        sock = socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])))
    sock.sendall(opening() if data is None else data)
    sock.setblocking(False)
    settle()
    return sock


@pytest.fixture
def peer(ports):
    with contextlib.ExitStack() as stack:
        yield lambda plane=CONTROL, data=None: stack.enter_context(connected(ports, plane, data))


def turn(ports: ServerSockets, plane: Plane = CONTROL, most: int = 1000, turns: int = 3) -> list:
    """What comes in some rounds."""
    found = []
    for _ in range(turns):
        settle()
        ports.wait(0.0)
        found += [
            (route, [bytes(one) for one in frames]) for route, frames in ports.receive(plane, most)
        ]
    return found


def heard(ports: ServerSockets, plane: Plane = CONTROL) -> tuple:
    """The next message."""
    deadline = Deadline(PATIENCE_S)
    while not deadline.expired:
        ports.wait(0.1)
        for route, frames in ports.receive(plane, 1):
            return route, [bytes(one) for one in frames]
    raise AssertionError("no message came")


def until(ports: ServerSockets, condition, wait_s: float = 0.01) -> None:
    """``wait_s`` is 0 where the clock stands still."""
    deadline = Deadline(PATIENCE_S)
    while not condition():
        assert not deadline.expired
        ports.wait(wait_s)


def received(sock: socket.socket) -> bytes:
    with contextlib.suppress(BlockingIOError, ConnectionError):
        return sock.recv(1 << 16)
    return b""


def is_closed(sock: socket.socket) -> bool:
    """Whether the other end has closed, once all that it had sent was read."""
    settle()
    try:
        while sock.recv(1 << 16):
            continue
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


# -- clients of libzmq -----------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("plane", list(Plane))
def test_messages_of_many_and_large_frames_go_both_ways(context, folder, where, plane, keyed):
    rng = np.random.default_rng(0)
    messages = [
        [rng.bytes(n) for n in sizes]
        for sizes in ([0], [64, 0, 300], [64, 5 << 20, 1, 70_000], [1] * 4000)
    ]
    keys = {"mechanism": curve_of(load_server_keys(folder))} if keyed else {}
    with (
        contextlib.closing(ServerSockets(where, Limits(), **keys)) as ports,
        context.socket(zmq.DEALER) as client,
    ):
        client.linger = 0
        if keyed:
            apply_client_keys(client, folder / "alice.secret")
        client.connect(ports.endpoints[plane])
        for message in messages:
            client.send_multipart(message)
            route, came = heard(ports, plane)
            assert came == message
            assert route.user == ("alice" if keyed else None)
            assert ports.send(plane, route, [np.frombuffer(one, np.uint8) for one in message], 0)
            until(ports, lambda: client.poll(0))
            assert client.recv_multipart() == message


@pytest.mark.parametrize("keyed", [False, True])
def test_heartbeats_of_libzmq_are_answered_also_while_no_message_is_taken(
    context, folder, where, keyed
):
    keys = {"mechanism": curve_of(load_server_keys(folder))} if keyed else {}
    with (
        contextlib.closing(ServerSockets(where, Limits(), **keys)) as ports,
        context.socket(zmq.DEALER) as client,
    ):
        client.linger = 0
        if keyed:
            apply_client_keys(client, folder / "alice.secret")
        client.heartbeat_ivl, client.heartbeat_timeout, client.heartbeat_ttl = 10, 30_000, 30_000
        monitor = client.get_monitor_socket(GONE | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        client.connect(ports.endpoints[INSERT])
        client.send(b"x")
        (link,) = until(ports, lambda: ports._links) or ports._links.values()
        until(ports, lambda: monitor.poll(0))
        answers = []
        until(ports, lambda: answers.append(link._put) or len(set(answers)) > 20)
        assert (
            parse_monitor_message(monitor.recv_multipart())["event"]
            == zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        assert not monitor.poll(0), "the connection lasts"
        client.disable_monitor()
        monitor.close()


# -- peers of all kinds ----------------------------------------------------------------------------


@pytest.mark.parametrize("plane", [INSERT, PULL])
def test_a_ping_among_messages_that_were_stopped_and_an_end_harm_nothing(where, plane):
    """What ends a server of libzmq: input stopped at a high water, a PING in what was read
    already, and the end of the peer.
    """
    with contextlib.closing(ServerSockets(where, Limits())) as ports:
        one = framed([b"x"])
        for _ in range(50):
            with connected(ports, plane, opening() + one * 300 + ping(b"ctx") + one * 40):
                ports.wait(0.0)
                ports.wait(0.0)
        ports.wait(0.0)
        assert len(turn(ports, plane, 10**6, 60)) > 0
        with connected(ports, plane, opening() + framed([b"alive"])):
            until(ports, lambda: any(came == [b"alive"] for _, came in turn(ports, plane)))
        assert ports.faults == 0


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        greeting(b"PLAIN"),
        greeting() + framed([b"early"]),
        opening() + bytes([LONG]) + b"\xff" * 8,
        opening() + frame(b"\4PING", COMMAND),
    ],
)
def test_a_peer_that_breaks_the_rules_is_ended_alone(ports, peer, data):
    good, bad = peer(), peer(CONTROL, data)
    turn(ports)
    assert is_closed(bad)
    good.sendall(framed([b"x"]))
    assert [came for _, came in turn(ports)] == [[b"x"]]
    assert ports.connections() == {
        "open": 1,
        "violations": 1,
        "spared": 0,
        "turned_away": 0,
        "faults": 0,
    }


# -- time ------------------------------------------------------------------------------------------


@pytest.fixture
def clock():
    return Clock()


# -- floods ----------------------------------------------------------------------------------------


class Flood:
    """A peer that sends the same bytes again and again, as many as the other end takes."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        self.sock, self._data, self.sent = sock, memoryview(data), 0

    def push(self, limit: int) -> bool:
        """Whether any were taken."""
        before = self.sent
        with contextlib.suppress(BlockingIOError):
            while self.sent - before < limit:
                self.sent += self.sock.send(self._data[self.sent % len(self._data) :])
        return self.sent > before

    def push_all(self, ports: ServerSockets, limit: int) -> int:
        """Until no more are taken, while the server waits for its table; how many were."""
        stuck = 0
        while stuck < 50 and self.sent < limit:
            stuck = 0 if self.push(limit) else stuck + 1
            ports.wait(0.001)
        return self.sent


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_what_is_not_taken_stays_with_the_peer(where, size):
    limit = 64 << 20
    with (
        contextlib.closing(ServerSockets(where, Limits())) as ports,
        connected(ports, INSERT) as peer,
    ):
        ports.wait(0.0)
        before = psutil.Process().memory_info().rss
        sent = Flood(peer, framed([bytes(size)]) * 100).push_all(ports, limit)
        assert sent < limit
        (link,) = ports._links.values()
        assert link.connection.held_bytes <= (8 << 20) + (2 << 20) + size
        assert psutil.Process().memory_info().rss - before < 40 << 20
        assert ports.wait(0.05) == [], "a peer that is not read does not wake the loop"
        assert {len(came[0]) for _, came in turn(ports, INSERT, 10**6, 50)} == {size}


def test_a_flood_costs_others_a_few_turns_and_no_more(ports, peer):
    floods = [Flood(peer(INSERT), framed([b"flood"]) * 1000) for _ in range(5)]
    turn(ports)
    good = peer(INSERT)
    until(ports, lambda: len(ports._links) == 6)
    link = list(ports._links.values())[-1]
    for _ in range(5):
        for one in floods:
            one.push(1 << 20)
        good.sendall(framed([b"good"]))
        until(ports, lambda: link.connection.messages)
        # four that have no session have their turn in a round
        two = [*ports.receive(INSERT, 96), *ports.receive(INSERT, 96)]
        assert [frames for route, frames in two if route is link] == [[b"good"]]


@pytest.mark.parametrize("held", ["large frames", "parts of frames", "messages", "empty frames"])
def test_what_strangers_hold_is_bounded_over_all_and_the_one_with_most_is_refused(
    tmp_path, held, monkeypatch
):
    monkeypatch.setattr(module, "CONTROL_BYTES", 1 << 18)
    data = {
        "large frames": frame(bytes(1 << 18), 1) * 2,
        "parts of frames": frame(bytes(1 << 18))[: 1 << 10],
        "messages": framed([bytes(1000)]) * 60,
        "empty frames": b"\1\0" * 4000,
    }[held]
    with contextlib.ExitStack() as stack:
        limits = Limits(message_bytes=1 << 18)
        ports = stack.enter_context(
            contextlib.closing(ServerSockets(over("ipc", tmp_path), limits))
        )
        most, floods = (1 << 19) + (2 << 20), []
        for i in range(80):
            one = stack.enter_context(connected(ports, list(Plane)[1 + i % 2]))
            floods.append(Flood(one, data))
            with contextlib.suppress(ConnectionError):
                floods[-1].push(len(data))
            for _ in range(40):
                ports.wait(0.0)
                if held == "empty frames":  # they are parsed in turns
                    assert not [*ports.receive(INSERT, 99), *ports.receive(PULL, 99)]
                assert sum(link.connection.memory for link in ports._links.values()) <= most
        assert ports.spared > 0
        honest = stack.enter_context(connected(ports, data=opening() + framed([b"hello"])))
        assert heard(ports)[1] == [b"hello"]
        assert not is_closed(honest)
        said = b"".join(received(one.sock) for one in floods)
        assert b"which is the limit: say HELLO first" in said


def test_a_peer_that_does_not_read_is_sent_no_more_than_its_queue_holds(ports, peer):
    deaf = peer(PULL, opening() + framed([b"x"]))
    ((route, _),) = turn(ports, PULL)
    block = np.zeros(1 << 16, np.uint8)
    sent = 0
    while ports.send(PULL, route, [block], block.nbytes):
        sent += 1
        assert sent < 10_000
    assert len(route._ends) == 128
    splitter = Splitter()
    deadline = Deadline(PATIENCE_S)
    while len(splitter.messages) < sent and not deadline.expired:
        ports.wait(0.0)
        with contextlib.suppress(BlockingIOError):
            splitter.feed(deaf.recv(1 << 20))
    assert {len(one[0]) for one in splitter.messages} == {1 << 16}
    assert ports.send(PULL, route, [b"x"], 1)


# -- many connections ------------------------------------------------------------------------------


def test_connections_beyond_the_most_end_the_oldest_that_no_session_needs(tmp_path):
    ports = ServerSockets(over("ipc", tmp_path), Limits(), most=10)
    with contextlib.closing(ports), contextlib.ExitStack() as stack:
        kept = stack.enter_context(connected(ports, data=opening() + framed([b"x"])))
        ((route, _),) = turn(ports)
        ports.needed = lambda: [route]
        others = [stack.enter_context(connected(ports)) for _ in range(30)]
        turn(ports, turns=10)
        assert ports.connections()["open"] == 10
        assert ports.connections()["spared"] == 21
        assert not is_closed(kept)
        assert [is_closed(one) for one in others] == [True] * 21 + [False] * 9


class Counted:
    """An epoll that counts."""

    def __init__(self, real) -> None:
        self._real, self.polls = real, 0

    def poll(self, *arguments):
        self.polls += 1
        return self._real.poll(*arguments)

    def __getattr__(self, name):
        return getattr(self._real, name)


@pytest.mark.parametrize("all_needed", [False, True])
def test_without_descriptors_the_loop_does_not_spin_and_goes_on_later(tmp_path, all_needed):
    ports = ServerSockets(over("ipc", tmp_path), Limits())
    with contextlib.closing(ports), contextlib.ExitStack() as stack:
        early = [stack.enter_context(connected(ports)) for _ in range(3)]
        turn(ports)
        if all_needed:
            ports.needed = lambda: list(ports._links.values())
        callers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(40)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 2, hard))
        try:
            for one in callers:
                one.setblocking(False)
                one.connect(ports.endpoints[CONTROL].removeprefix("ipc://"))
                with contextlib.suppress(ConnectionError):
                    one.send(opening() + framed([b"x"]))
            counted = ports._epoll = Counted(ports._epoll)
            ports.wait(0.3)
            assert counted.polls < 100
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [is_closed(one) for one in early] == [not all_needed] * 3
        late = stack.enter_context(connected(ports, data=opening() + framed([b"late"])))
        until(ports, lambda: any(came == [b"late"] for _, came in turn(ports)))
        late.close()


# -- the end ---------------------------------------------------------------------------------------


@pytest.fixture
def timed(clock, where):
    with contextlib.closing(ServerSockets(where, Limits(), clock=clock)) as one:
        yield one


def test_a_handshake_has_five_seconds(timed, clock):
    with connected(timed, CONTROL, greeting()) as slow, connected(timed) as good:
        turn(timed)
        clock.now += 4.9
        turn(timed)
        assert not is_closed(slow)
        clock.now += 0.2
        turn(timed)
        assert is_closed(slow)
        assert not is_closed(good)


@pytest.mark.slow
def test_a_message_that_never_ends_is_cut(ports, peer):
    one = peer()
    turn(ports)
    with contextlib.suppress(ConnectionError):
        Flood(one, frame(bytes(1 << 20), 1)).push_all(ports, 1 << 30)
    assert is_closed(one)
    assert ports.violations == 1
