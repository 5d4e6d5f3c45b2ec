"""A discrete-event model of a cluster that is larger than any host here: what saturates, and where.

::

    measure.py ──▶ costs.py ──▶ directory.py, sessions.py, limiter.py, sizing.py ──▶ page.py
    (this host)    (record)     (on events.py, fifo_server.py, link.py)              (operations.md)

Every client and every call is an event of its own, in simulated time. That stays quick for 100,000
clients, as a server that takes 0.4 ms for a call cannot be given more than 2,500 of them a second.
What is put together: reports of a loss that come at the same moment are one job as long as all of
them, which is exact for one server with a queue, but they enter as one call of the most that the
directory lets in; those of a lost host, which come within a heartbeat, are put together by 50 ms,
so they are late by that at most; and clients that wait for a newer map cost nothing until their
time is over, which is exact. The limiters are those of the package: `LimiterState`,
`LimiterBalance` and `rows_of_each` run unchanged, with simulated shards below them.
"""
