"""The feeder's client: one IO thread and three sockets behind writers, sources and calls.

::

    RemoteWriter ─▶ RowSink ─▶ RowQueue (RowBuffer, Outbox) ─▶ WriterChannel ─┐
                                                                              │           ┌▶ control
    RemoteSource ◀─ Deliveries ◀───────────────────────────── ReaderChannel ◀─┼▶ IoThread ┼▶ insert
    TableClient.sample ◀───────────────────────────────────── SampleChannel ◀─┤           └▶ pull
    Client.status, publish; TableClient.get, update ───────── Calls ◀─────────┘

`session`, `outbox`, `row_queue` and `deliveries` are arithmetic; `sockets` alone uses ZeroMQ;
`io_thread` is the only thread. User threads wait at a `Notifier` or, in a source's plan, at an
`EventFd`.
"""
