"""What runs in processes of their own: the server, actors that append numbered steps, learners that
use them.

Each writes what it does to a file before and after it does it, with one system call, so that what
was written is there however the process ends. SIGUSR1 asks an actor or a learner to come to its
end.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import random
import signal
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import sabotages
import torch
from history import MEMBERS
from table_parts import debug_state

from async_loader import AsyncDataLoader, Field, ReplayBuffer, tree
from async_loader.errors import Timeout
from async_loader.feeder import connect
from async_loader.feeder.addresses import parse
from async_loader.feeder.client import reader_channel, sockets, writer_channel
from async_loader.feeder.curve_keys import curve_of, load_server_keys
from async_loader.feeder.server import Server
from async_loader.feeder.server.batch_scheduler import BatchScheduler
from async_loader.feeder.serving import claim
from async_loader.feeder.settings import LimitSettings, ServiceSettings
from async_loader.feeder.wire import Plane
from async_loader.lifecycle import Deadline
from async_loader.replay.base.row_format import CURSOR, FINAL
from async_loader.replay.kernel_build import warm
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo, Prioritized, Uniform

TABLE = "chaos"
WIDE = 300
"""float32: more than a kilobyte, so that they travel in a frame of their own and could be torn
from the small ones.
"""
SILENCE_S, HEARTBEAT_S = 1.0, 0.2
CALL_S = 2.0
WAIT_S, CLOSE_S = 0.3, 10.0
LAST_S = 60.0
WELL_S, PREFETCH = 45.0, 2
"""Until everything works again; batches that may have been here already when all became well."""
OBS = {"small": Field((3,), next="next_obs"), "wide": Field((WIDE,), next="next_obs")}
SCHEMA = {"actor": np.int64, "value": np.int64, "obs": OBS}
TERMINATES, TRUNCATES = 17, 29
"""Values of which these are divisors end an episode."""


class Log:
    """A line for everything that happens, with the time."""

    def __init__(self, folder: str, name: str):
        self._fd = os.open(Path(folder) / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, *what) -> None:
        os.write(self._fd, (json.dumps([time.monotonic(), *what]) + "\n").encode())

    def close(self) -> None:
        os.close(self._fd)

    def timed(self, name: str, limit_s: float, call):
        """What ``call`` returns, or Timeout; any other error is a finding."""
        began = time.monotonic()
        try:
            return call()
        except Timeout as error:
            return error
        finally:
            self("took", name, limit_s, time.monotonic() - began)


def say(*what) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


class Ending:
    """Whether SIGUSR1 came."""

    def __init__(self):
        self.asked = False
        signal.signal(signal.SIGUSR1, self._ask)

    def _ask(self, *_):
        self.asked = True


def sooner() -> None:
    """What heals by itself does so within seconds; here, within tenths."""
    writer_channel.LATER_S = reader_channel.REMIND_S = 0.2
    sockets.SILENCES = 1


def observed(value: int) -> dict:
    return {"small": np.full(3, value, np.float32), "wide": np.full(WIDE, value, np.float32)}


def torn(rows) -> list:
    """Numbers of rows whose fields are not of one step, or that are followed by what does not
    follow them.

    The final observation of a step is a negative number; a step that ends no episode is followed by
    the next of its stream.
    """
    value = rows["value"].astype(np.float32)[:, None]
    wrong = (rows["obs"]["small"] != value).any(1) | (rows["obs"]["wide"] != value).any(1)
    if "next_obs" in rows:
        after = rows["next_obs"]["small"][:, :1]
        ends = (rows["value"] % TERMINATES == 0) | (rows["value"] % TRUNCATES == 0)
        follows = (after[:, 0] == value[:, 0] + MEMBERS) & ~ends
        wrong |= ~follows & (after[:, 0] != -1 - value[:, 0])
        wrong |= (rows["next_obs"]["small"] != after).any(1) | (
            rows["next_obs"]["wide"] != after
        ).any(1)
    return np.flatnonzero(wrong).tolist()


def priority_of(actor, value):
    """What a row has when a learner has seen it; 1 before."""
    return 2.0 + 10_000 * actor + value


def connected(options: dict):
    """A client of the feeder behind the proxy."""
    keys = Path(options["keys"]) / "client.secret" if options["keys"] else None
    return connect(options["address"], timeout_s=LAST_S, keys=keys)


def actor(options: dict) -> None:
    number, rng, ending = options["number"], random.Random(options["seed"]), Ending()
    warnings.simplefilter("ignore")  # what was lost is read from stats
    log = Log(options["folder"], options["name"])
    client = connected(options)
    writer = client.table(TABLE).writer(
        schema=SCHEMA,
        batch_rows=rng.choice((1, 7, 32)),
        linger_ms=rng.choice((0.5, 3.0)),
        buffer_bytes=rng.choice((64 << 10, 1 << 20)),
        overflow="drop_oldest" if options["drops"] else "block",
    )
    say("ready")
    appended, priority = 0, 1.0 if options["mode"] == "prioritized" else None

    def append(value: int, last: bool = False):
        terminated, truncated = last or value % TERMINATES == 0, not last and value % TRUNCATES == 0
        truncated &= not terminated
        step = {"actor": number, "value": value, "obs": observed(value)}
        final = observed(-1 - value) if terminated or truncated else None
        how = {
            "stream": value % MEMBERS,
            "terminated": terminated,
            "truncated": truncated,
            "final_obs": final,
        }
        while (
            log_append(log, lambda: writer.append(step, priority=priority, timeout_s=CALL_S, **how))
            is not None
        ):
            continue

    while not ending.asked:
        count = rng.randint(1, 40)
        if appended + count > options["rows"]:
            # no wait for the signal itself: it may have come since it was looked for
            while not ending.asked:
                threading.Event().wait(0.01)
            break
        log("sent", appended + count, client._connection.incarnation.hex())
        for value in range(appended, appended + count):
            append(value)
        appended += count
        if rng.random() < 0.4 and log.timed("flush", CALL_S, lambda: writer.flush(CALL_S)) is None:
            log("acked", appended)
        threading.Event().wait(rng.uniform(0.0, 0.02))
    log("sent", appended + MEMBERS, client._connection.incarnation.hex())
    for value in range(appended, appended + MEMBERS):  # so that every step is followed by something
        append(value, last=True)
    appended += MEMBERS
    late = log.timed("close", LAST_S, lambda: writer.close(LAST_S))
    stats = client.stats()
    log(
        "done",
        appended,
        stats.rows_acked,
        stats.rows_lost,
        stats.rows_dropped,
        stats.messages_resent,
        stats.sessions,
        str(late or ""),
    )
    client.close(CALL_S)
    log.close()


def log_append(log: Log, append):
    """Only waits that took long are written down: there are too many of them."""
    began = time.monotonic()
    try:
        return append()
    except Timeout as error:
        return error
    finally:
        spent = time.monotonic() - began
        if spent > CALL_S / 2:
            log("took", "append", CALL_S, spent)


def learner(options: dict) -> None:
    """Takes batches from a loader, as a training script does; what it has taken it has used when
    it asks for the next.
    """
    ending, memfd = Ending(), os.memfd_create
    # so that it can be told from a table where it is mapped
    os.memfd_create = lambda name, how: memfd("learner", how)
    log, wanted = Log(options["folder"], options["name"]), None
    if options["until"]:  # the last one, which takes what the others have left
        wanted = {tuple(one) for one in json.loads(Path(options["until"]).read_text())}
    rng = random.Random(f"{options['seed']} {options['name']}")
    client = connected(options)
    table = client.table(TABLE)
    source = table.source(prefetch=rng.choice((1, PREFETCH, 8)))
    loader = AsyncDataLoader(
        source,
        options["batch"],
        prefetch=rng.choice((1, PREFETCH, 8)),
        in_order=rng.random() < 0.7,
        timeout_s=WAIT_S,
    )
    say("ready")
    deadline, more, over = Deadline(options["left_s"]), options["more"], None
    while not (wanted is not None and (not wanted or deadline.expired)):
        # all is well by now: where there is something for everybody, it has to come
        if ending.asked:
            over = over or Deadline(WELL_S)
            if more <= 0 or over.expired:
                break
        batch = log.timed("next", WAIT_S, lambda: next(loader))
        if isinstance(batch, Timeout):
            continue
        found = tree.transform(batch, torch.Tensor.numpy)
        pairs = list(zip(found["actor"].tolist(), found["value"].tolist(), strict=True))
        again = found["redelivered"].tolist() if "redelivered" in found else [False] * len(pairs)
        log("used", again, pairs, torn(found))
        if options["mode"] == "prioritized":
            prioritize(log, table, found)
        more -= ending.asked
        if wanted is not None:
            wanted -= set(pairs)
        if options["pause_s"]:
            threading.Event().wait(options["pause_s"])
    transport = source.transport
    log.timed("close", CLOSE_S, lambda: loader.close(CLOSE_S))
    stats = client.stats()  # only now: the session may have been lost while its loader closed
    log("done", stats.batches, stats.batches_redelivered, stats.sessions, more, transport)
    log.timed("close", LAST_S, lambda: client.close(LAST_S))
    log.close()


def prioritize(log: Log, table, found: dict) -> None:
    """What a learner does with what it has learned: each row gets a priority of its own."""
    values = priority_of(found["actor"], found["value"])
    done = log.timed(
        "priorities",
        CALL_S,
        lambda: table.update_priorities(found["index"], values, timeout_s=CALL_S),
    )
    if not isinstance(done, Timeout):
        log("prioritized", len(values), done.applied, done.stale)


class Announced(Server):
    """Says that it is where the proxy is, and writes its table down at the end, and how many
    batches came back with a session.
    """

    def at(self, proxy: dict[str, int], dump: str):
        self._proxy, self._dump, self._came_back = proxy, dump, 0
        leave = self._control_handler.leave

        def counted(session):
            self._came_back += sum(len(reader.leases) for reader in session.readers.values())
            leave(session)

        self._control_handler.leave = counted
        return self

    def _welcome(self):
        here = {
            f"{plane}_endpoint": f"tcp://127.0.0.1:{self._proxy[plane]}"
            for plane in ("insert", "pull")
        }
        return msgspec.structs.replace(
            super()._welcome(), **(here if self._server_state.memory is None else {})
        )

    def close(self):
        if not self._closed:
            for table in self._server_state.tables.values():
                held = batches_of(table.scheduler, table.buffer)
                np.savez(self._dump, came_back=self._came_back, held=held, **contents(table.buffer))
        super().close()


def batches_of(scheduler: BatchScheduler, buffer: ReplayBuffer) -> np.ndarray:
    """(actor, value) of rows that were drawn for a learner and not used by one: the server
    delivers them before new ones.
    """
    if buffer.schema is None:
        return np.empty((0, 2), np.int64)
    places = [
        [field.name for field in buffer.schema.fields].index(name) for name in ("actor", "value")
    ]
    columns = list(scheduler._returned._columns.values())
    for reader in scheduler.readers:
        columns += [one.columns for one in reader.leases.values()]
    return np.concatenate(
        [np.empty((0, 2), np.int64), *(np.stack([one[i] for i in places], 1) for one in columns)]
    )


def contents(buffer: ReplayBuffer) -> dict:
    """All rows that are there, by id."""
    owner = debug_state(buffer).state
    if buffer.schema is None:
        return {"ids": np.empty(0, np.int64)}
    with owner.lock:
        ids = np.arange(owner.table.g[CURSOR])
        found = owner.table.find(ids)
        steps = (found >= 0) & (owner.table.storage.heads()[found, 3] & FINAL == 0)
        ids, rows = ids[steps], found[steps]
        storage, items = owner.table.storage, owner.table.items.alive[rows] != 0
        names = [field.name for field in storage.layout.schema.fields]
        cells = [storage.cell(i) for i in range(len(names))]
        columns = {name: cell[rows].copy() for name, cell in zip(names, cells, strict=True)}
    columns["obs"] = {
        name.partition(".")[2]: columns[name] for name in names if name.startswith("obs.")
    }
    dump = {
        "ids": ids,
        "actor": columns["actor"],
        "value": columns["value"],
        "torn": np.array(torn(columns)),
    }
    if isinstance(owner.sampler, Prioritized):
        given = owner.sampler._masses.leaves[rows]
        own = priority_of(columns["actor"], columns["value"])
        dump["misplaced"] = np.flatnonzero(
            items & (np.abs(given - 1) > 1e-3) & (np.abs(given - own) > 1e-3)
        )
    return dump


def server(options: dict) -> None:
    for name in options["sabotage"]:
        getattr(sabotages, name)()
    how = {
        "queue": {"sampler": Fifo(), "max_times_sampled": 1, "limiter": Queue(options["size"])},
        "prioritized": {"sampler": Prioritized(alpha=1.0, eps=0.0)},
        "replay": {"sampler": Uniform()},
    }[options["mode"]]
    buffer = ReplayBuffer(1 << 16, max_bytes="512MiB", **how)
    ends = dict.fromkeys(Plane, "tcp://127.0.0.1:0")
    locks = {}
    if options["shared"]:
        ends = {
            plane: options["address"] + ("" if plane is Plane.CONTROL else f".{plane.value}")
            for plane in Plane
        }
        claim(parse(options["address"]))  # removes the files of a killed one
        locks = {"memory": options["address"].removeprefix("ipc://") + ".memory"}
    if options["keys"]:
        locks = {"mechanism": curve_of(load_server_keys(options["keys"]))}
    one = Announced(
        {TABLE: buffer},
        ends,
        ServiceSettings(
            limits=LimitSettings(window_bytes=256 << 10, window_rows=200),
            heartbeat_s=HEARTBEAT_S,
            silence_s=SILENCE_S,
        ),
        **locks,
    ).at(options["proxy"], options["dump"])
    ports = (
        {}
        if options["shared"]
        else {plane.value: int(end.rpartition(":")[2]) for plane, end in one.endpoints.items()}
    )
    say("ready", ports, one.incarnation.hex())
    one.run()


_PR_SET_PDEATHSIG = 1


def opened() -> Counter[str]:
    """Descriptors that something should have closed, by kind."""
    kinds: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            kinds[os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]] += 1
    return kinds


def main(argv: list[str]) -> None:
    """Play a role; what a role leaves behind is written to stderr, which has to stay empty."""
    sooner()
    # the end of the zygote ends all roles
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    role, options = argv
    # Warnings of a feeder that is away, or of one that was killed between its answer and an offer
    # of memory, are right: the verdict looks at what there was in the end.
    logging.getLogger("async_loader").setLevel(logging.ERROR)
    before = opened()
    {"actor": actor, "learner": learner, "server": server}[role](json.loads(options))
    gc.collect()  # a table's memory goes with its last reader
    left = [
        *(opened() - before).items(),
        *(one.name for one in threading.enumerate() if one is not threading.main_thread()),
    ]
    if left:
        os.write(2, f"left behind: {left}\n".encode())
    say("done")
    # nothing is left that an interpreter would have to take down, which takes longer than the
    # round's end
    os._exit(0)


warm()  # once, before the first process is forked
gc.collect()
gc.freeze()  # what a collection in a fork need not look at, and so need not copy
