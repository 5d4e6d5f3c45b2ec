"""The feeder's client: one IO thread and three sockets behind writers, sources and calls.

::

    RemoteWriter ─▶ WriterRows (RowBuffer, Outbox) ─▶ WriterChannel ──┐
                                                                      │           ┌▶ control
    RemoteSource ◀─ ReaderBatches ◀────────────────── ReaderChannel ◀─┼▶ IoThread ┼▶ insert
    Client.status, publish; TableClient.get, update ─ Calls ◀─────────┘           └▶ pull

`session`, `outbox` and `reader_batches` are arithmetic; `sockets` alone uses ZeroMQ;
`io_thread` is the only thread. User threads wait at a `Notifier` or, in a source's plan, at an
`EventFd`.
"""
