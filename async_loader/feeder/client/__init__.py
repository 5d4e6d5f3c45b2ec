"""The feeder's client: one IO thread, three sockets, and what waits for them. Owns no row.

::

    RemoteWriter ──rows──▶ Part ──sealed──▶ Outbox (go-back-N) ─┐                    ┌─▶ control
                                                 WriterChannel     ├─▶ Connection ◀─────┼─▶ insert
    AsyncDataLoader ◀── RemoteSource ◀── inbox ◀─ ReaderChannel ◀──┤   one IO thread    └─▶ pull
    Client.status, publish, latest, ────────── Call ────────────┘   Session, Planes
    TableClient.update_priorities

`session` and `outbox` are arithmetic; `planes` alone knows ZeroMQ; `connection` is the only thread. A user's thread waits at
`News` (any number of them) or, in a source's plan, at a Bell.
"""
