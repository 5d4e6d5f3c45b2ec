"""Loads the kernels on a thread, while the loop answers what needs no table.

# NOTE [before the kernels]
A client's first messages, HELLO and PING, need no table. So a server is bound and answers them at
once, and takes and gives weights. Messages for tables wait: control messages here, in order,
INSERTs and PULLs in their sockets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from async_loader.errors import Malformed
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.wire import ErrorCode, Message
from async_loader.lifecycle import join
from async_loader.replay.base.compiled import is_kept
from async_loader.replay.kernel_warmup import is_warm, warm

_MOST = 1 << 12


class KernelWarmup:
    """Loads the kernels, unless this process has them. Compiles them at once if the disk has none.

    Parameters
    ----------
    done : callable
        Called on the thread at its end.
    """

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._error: BaseException | None = None
        self._early: list[tuple[Session, Message]] = []
        self._thread: threading.Thread | None = None
        self._over = False
        if not is_warm() and not is_kept():
            warm()
        elif not is_warm():
            self._thread = threading.Thread(
                target=self._run, name="async-loader-kernel-warmup", daemon=True
            )
            self._thread.start()

    @property
    def over(self) -> bool:
        """Whether tables can be used. Raises what loading the kernels raised."""
        if self._error is not None:
            raise self._error
        return self._over or self._thread is None

    def keep(self, session: Session, message: Message) -> None:
        """Keep a message for later. Raises Malformed, LIMIT."""
        if len(self._early) >= _MOST:
            raise Malformed(
                f"{_MOST} requests wait until this server has started, which is the limit: ask "
                "later",
                ErrorCode.LIMIT,
            )
        self._early.append((session, message))

    def kept(self) -> list[tuple[Session, Message]]:
        """Return the kept messages, once."""
        kept, self._early = self._early, []
        return kept

    def close(self, timeout_s: float) -> None:
        """Wait for the thread, which cannot be interrupted."""
        if self._thread is not None:
            join(self._thread, timeout_s)

    def _run(self) -> None:
        try:
            warm()
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._done()
