"""The status of a feeder: the keys of `Client.status` and of ``async-loader status --json``.

Rates, which end in ``_per_s``, and shares are current: over the last seconds.
"""

from __future__ import annotations

from typing import Any, TypedDict


class PolicyLag(TypedDict, total=False):
    """How far the steps of a table's writers are behind the newest weights of one name.

    Attributes
    ----------
    newest, oldest : int
        Versions of the newest steps of writers: of the writer furthest ahead, and furthest behind.
    lag : int
        Versions between ``oldest`` and the published one. Missing while none is published.
    batch_lag : int
        Of a queue: versions between the oldest row of its last batch and the published one.
    """

    newest: int
    oldest: int
    lag: int
    batch_lag: int


class TableStatus(TypedDict):
    """One table.

    Attributes
    ----------
    size, capacity : int, int | None
        Items that can be drawn; steps that are kept.
    full : bool
        Whether items leave as steps come; see `TableStats`.
    inserted, sampled, deleted : int
        Items, since the table was made or cleared; a load sets them to what the save says.
    nbytes : int | None
        Shared memory of the full table.
    inserts_per_s, samples_per_s : float
        Steps received and rows sent, over the last seconds.
    samples_per_insert : float
    waiting : list of str
        Requests that wait, and why: eight at most.
    policies : dict of str to PolicyLag
        By name of the weights.
    writers, readers : int
        That are open.
    rows_in, duplicates : int
        Steps received and inserted, without final observations and ends of episodes, which are
        rows of messages too; messages received twice.
    queued_rows, queued_bytes : int
        Received, and not in the table; rows of messages, see ``rows_in``.
    queue_age_s : float
        Since when the oldest of them waits; 0 if there are none.
    writers_blocked_s : float
        Seconds in which rows waited for the table.
    batches_out, redelivered, rows_out : int
    readers_blocked_s : float
        Seconds in which readers had room for a batch and the table allowed none a draw, for too few
        items or by its limiter.
    writers_wait, readers_wait : float
        The shares of the last seconds in which that was so, from 0 to 1.
    stale : dict of str to int
        Steps that readers with ``max_lag`` have left out, those of all such readers together,
        closed ones too, by reason: they ``became_old``, ``came_old``, or are of an ``other_run`` of
        their weights.
    """

    size: int
    capacity: int | None
    full: bool
    inserted: int
    sampled: int
    deleted: int
    nbytes: int | None
    inserts_per_s: float
    samples_per_s: float
    samples_per_insert: float
    waiting: list[str]
    policies: dict[str, PolicyLag]
    writers: int
    readers: int
    rows_in: int
    duplicates: int
    queued_rows: int
    queued_bytes: int
    queue_age_s: float
    writers_blocked_s: float
    writers_wait: float
    rows_out: int
    batches_out: int
    redelivered: int
    readers_blocked_s: float
    readers_wait: float
    stale: dict[str, int]


class SessionStatus(TypedDict):
    """One client.

    Attributes
    ----------
    id, pid, host : int, int, str
        Of the session; of the client's process.
    user : str | None
        The owner of its key; ``None`` without keys.
    name, user_agent : str
        The ``name`` that `connect` was given; with the version of the client.
    role : str
        What it has asked for so far: an ``actor`` opened a writer; a ``learner`` opened a reader or
        published weights; an ``evaluator`` took weights; a ``watcher`` asked for the status only;
        or ``other``. The first that holds.
    state : str
        ``connected``; ``silent``, if nothing came for three seconds; ``died``, without a word, or
        ``left``; among ``sessions_died`` also ``lost``.
    age_s, silent_s : float
    connected : bool
        Whether a connection of it is open. One that is not has died, and is listed until its
        silence ends it, or another client needs its place.
    writers, readers : int
    rows_in, batches_out : int
        Steps received from its writers; batches sent to its readers; closed ones too.
    rows_per_s, batches_per_s : float
        Over the last seconds.
    in_flight_bytes : int
        Received, and not in a table.
    lag : int | None
        Versions that the newest steps of its writers are behind the published weights: of the
        writer furthest behind. ``None``: its steps carry none, or none is published.
    """

    id: int
    pid: int
    host: str
    user: str | None
    name: str
    user_agent: str
    role: str
    state: str
    age_s: float
    silent_s: float
    connected: bool
    writers: int
    readers: int
    rows_in: int
    batches_out: int
    rows_per_s: float
    batches_per_s: float
    in_flight_bytes: int
    lag: int | None


class CheckpointStatus(TypedDict):
    """The checkpoints of one table.

    Attributes
    ----------
    every_s : float | None
        ``None``: it is not saved by the feeder itself.
    number : int | None
        Of the newest save.
    age_s : float | None
        Since this process made it; ``None``: it has made none.
    save_s, nbytes : float | None, int | None
        What that save took.
    saving : bool
    failed : str | None
        Why the last one failed.
    restored_rows : int
        Items that the feeder began with.
    lost_rows : int
        Items that the process before this one had acknowledged, or was about to, and that are not
        restored.
    lost_rows_in_sum : int
        The same over all processes.
    """

    every_s: float | None
    number: int | None
    age_s: float | None
    save_s: float | None
    nbytes: int | None
    saving: bool
    failed: str | None
    restored_rows: int
    lost_rows: int
    lost_rows_in_sum: int


class FeederStatus(TypedDict):
    """A feeder.

    Attributes
    ----------
    incarnation : str
        A new one after each start.
    pid : int
    address : str
    version : int
        Of the wire.
    connections : dict of str to int
        Open connections, and ended ones by reason.
    uptime_s : float
    draining : bool
    tables : dict of str to TableStatus
    sessions_open : int
    sessions_ended : dict of str to int
        Clients that have ``left``; that ``died``, without a word; and that were ``lost``,
        as nothing came over an open connection.
    sessions : list of SessionStatus
        128 at most.
    sessions_died : list of SessionStatus
        The last 16 clients that ``died`` or were ``lost``, as they were then, the newest last, with
        present ``silent_s``. One that connects again is listed in ``sessions`` only.
    checkpoints : dict of str to CheckpointStatus
        By table, of a feeder with ``checkpoint: {every_s, path}``, and of a shard of a cluster.
    rollouts : dict of str to dict
        Tables of rollouts: the values of `async_loader.rollouts.RolloutStats`.
    weights : dict of str to int
        The newest version of each name.
    weights_stale : int
        Published versions that were ignored.
    weights_waiting : dict of str to int
        Clients that wait for newer ones.
    weights_age_s : dict of str to float
    counters : dict of str to int
        Messages and bytes, and refusals.
    """

    incarnation: str
    pid: int
    address: str
    version: int
    connections: dict[str, int]
    uptime_s: float
    draining: bool
    tables: dict[str, TableStatus]
    sessions_open: int
    sessions_ended: dict[str, int]
    sessions: list[SessionStatus]
    sessions_died: list[SessionStatus]
    checkpoints: dict[str, CheckpointStatus]
    rollouts: dict[str, dict[str, Any]]
    weights: dict[str, int]
    weights_stale: int
    weights_waiting: dict[str, int]
    weights_age_s: dict[str, float]
    counters: dict[str, int]
