"""A writer's end of the socket: it receives rows and credits, and asks for more.

Each wait is one wait over the socket, the end of the table's process, and a deadline.
"""

from __future__ import annotations

import pickle
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from async_loader.errors import AsyncLoaderError, Broken, CannotSend, Closed, ConfigError, Timeout
from async_loader.lifecycle import Deadline, readable
from async_loader.replay.array_types import Ids
from async_loader.replay.base import ring_format
from async_loader.replay.base.row_format import NEVER, OLD_AFTER
from async_loader.replay.multiprocess import messages
from async_loader.replay.multiprocess.messages import Message, MessageType
from async_loader.replay.multiprocess.publish_ring import PublishRing
from async_loader.replay.multiprocess.row_need import RowNeed
from async_loader.replay.table.waiters import WARN_AFTER_S
from async_loader.shm.fd_channel import FdChannel
from async_loader.shm.segment import Segment, close_all

_DYING_S = 2.0  # the sockets of a process that dies close a moment before it counts as dead
_ANSWER_S = 1.0
_DROPS = 4096  # in one record


class RowGrants:
    """The rows and credits that a writer has been given and not used.

    Parameters
    ----------
    channel : FdChannel
    owner_fd : int
        A pidfd of the table's process.
    ring : PublishRing
    clock : Segment
        The table's geometry; where its ids are.
    owner : int
        The pid, for messages.

    Attributes
    ----------
    left : int
        Rows that are there to be filled.
    written : int
        Records in the ring, so far.
    steps : int
        Steps among them.
    """

    def __init__(
        self,
        channel: FdChannel,
        owner_fd: int,
        ring: PublishRing,
        clock: Segment,
        owner: int,
    ) -> None:
        from async_loader.replay.kernels import publish_ring  # late: see compiled.py

        self._kernels = publish_ring
        self._channel, self._owner_fd, self._ring = channel, owner_fd, ring
        self._owner = owner
        self._words = np.frombuffer(clock.bytes(), np.int64)
        self._geometry = int(self._words.ctypes.data)
        self._extents: deque[tuple[int, int]] = deque()
        self.left = self.written = self.steps = 0
        self._room = ring_format.SIZE
        self._credits = 0
        self._asked = self._needs = False
        self._token = 0
        self._answer: Message | None = None
        self._why = "the table's process has not answered yet"

    # -- rows and credits --------------------------------------------------------------------------

    def ready(self, rows: Ids, steps: int, deadline: Deadline) -> int:
        """Wait until at least one step has a row and a credit; return for how many steps there are
        both.

        Parameters
        ----------
        rows : int64 array
            Rows that the first step takes, the first two, and so on. With no ``steps``, a row
            without a credit.

        Raises
        ------
        Timeout, Closed, Broken
            Nothing was written.
        """
        warned, one = False, int(rows[0])
        while True:
            got = 0
            if self.left >= one:
                self._make_room(one, deadline)
                fit = (
                    steps
                    if steps < 2
                    else int(np.searchsorted(rows, min(self.left, self._room - 2), "right"))
                )
                if not steps or self._credits:
                    return min(fit, self._credits)
                got = self._kernels.take(
                    self._ring.address, fit, self._geometry, self._extents[0][0]
                )
                if got > 0:
                    self._credits = got
                    return got
            if got == ring_format.SHUT:
                raise self._shut()
            if got == ring_format.STALE:
                self._skip()
            else:
                warned = self._wait(rows, steps, deadline, warned)

    def ready_at_once(self, rows: int) -> bool:
        """As `ready` for one step, if it need not wait. Return whether the step can be written."""
        if self.left < rows or self._room < rows + 2:
            return False
        if self._credits <= 0:
            self._credits = max(
                0,
                self._kernels.take(self._ring.address, 1, self._geometry, self._extents[0][0]),
            )
        return self._credits > 0

    def names(self, count: int) -> Ids:
        """Return the ids of the next ``count`` granted rows."""
        first, left = self._extents[0]
        if count <= left:
            return np.arange(first, first + count)
        parts, missing = [], count
        for first, left in self._extents:
            parts.append(np.arange(first, first + min(left, missing)))
            missing -= len(parts[-1])
        return np.concatenate(parts)[:count]

    def publish(self, written: int, rows: int, steps: int) -> None:
        """Publish all records before ``written``, which use up ``rows`` rows and ``steps`` credits.

        Ctrl-C may come after any call, also that of the kernel. So rows and credits are counted
        before it, without a call between, and no row is filled twice. What was not published then
        is published with the next record.
        """
        extents = self._extents
        first, left = extents[0] if rows else (0, 0)
        if rows and rows >= left:
            extents = self._behind(rows)
        elif rows:
            extents[0] = (first + rows, left - rows)
        self._extents = extents
        self._room -= written - self.written
        self.written = written
        self._credits -= steps
        self.left -= rows
        self.steps += steps
        rings = self._kernels.publish(self._ring.address, written)
        if len(self._extents) <= 1 and not self._asked:
            self._asked = self._try(MessageType.MORE)
        if rings:
            self._try(MessageType.RING)

    def publish_again(self) -> None:
        """Publish complete records, also if Ctrl-C came between the counts of `publish` and its
        kernel.
        """
        if self._kernels.publish(self._ring.address, self.written):
            self._try(MessageType.RING)

    def _behind(self, rows: int) -> deque[tuple[int, int]]:
        """Return the extents without their first ``rows`` rows."""
        extents = self._extents.copy()
        while rows:
            first, left = extents.popleft()
            if rows < left:
                extents.appendleft((first + rows, left - rows))
            rows -= min(rows, left)
        return extents

    def end_episode(self, stream: int, flags: int, deadline: Deadline) -> None:
        """Write a record without a row: see `ring_format.ENDED`."""
        self._make_room(1, deadline)
        self._note(stream, ring_format.ENDED | flags, 0)

    def _skip(self) -> None:
        """Give the rest of an extent back. See NOTE [old rows]."""
        _, left = self._extents[0]
        self._note(left, ring_format.SKIPPED, left)

    def _give_back(self) -> None:
        """Give rows back that would block others of a table that keeps its items."""
        old_after = int(self._words[OLD_AFTER])
        if self.left and old_after == NEVER and self._room > 1:
            self._note(self.left, ring_format.SKIPPED, self.left)

    def _note(self, what: int, flags: int, rows: int) -> None:
        self._kernels.note(self._ring.address, self.written, what, flags)
        self.publish(self.written + 1, rows, 0)

    def _make_room(self, rows: int, deadline: Deadline) -> None:
        """Wait for room in the ring. It is short only when many episodes end at once."""
        while self._room < rows + 2:  # one more stays free for giving an extent back
            self._room = self._ring.room(self.written)
            if self._room < rows + 2:
                self.ask(MessageType.FLUSH, MessageType.FLUSHED, b"", deadline)

    # -- asking ------------------------------------------------------------------------------------

    def hello(self, pid: int, death_fd: int) -> None:
        self._send(MessageType.HELLO, pid, fds=(death_fd,))

    def numbers(self, streams: Sequence[Any], deadline: Deadline) -> list[int]:
        """Ask for the table's numbers of streams."""
        try:
            body = pickle.dumps(list(streams), protocol=5)
        except Exception as error:  # pickling runs the code of a stream's name
            raise CannotSend(f"the name of a stream does not pickle: {error}") from error
        if len(body) > messages.NAMES_BYTES:
            half = len(streams) // 2
            if not half:
                raise ConfigError(
                    f"the name of a stream takes {len(body)} bytes, {messages.NAMES_BYTES} at "
                    "most: use a shorter one"
                )
            return self.numbers(streams[:half], deadline) + self.numbers(streams[half:], deadline)
        answer = self.ask(MessageType.NAMES, MessageType.NUMBERS, body, deadline)
        if answer.kind == MessageType.REFUSED:
            raise ConfigError(
                f"the table's process cannot use the name of a stream: {answer.body.decode()}"
            )
        numbers: list[int] = np.frombuffer(answer.body, np.int64).tolist()
        return numbers

    def drop(self, numbers: Sequence[int]) -> None:
        """Tell that these numbers of streams are unused.

        If the message cannot be sent, the table keeps them, which is harmless.
        """
        self.publish_again()
        for first in range(0, len(numbers), _DROPS):
            body = np.asarray(numbers[first : first + _DROPS], np.int64).tobytes()
            try:
                messages.send(self._channel, MessageType.DROP, body=body)
            except OSError:
                return

    def ask(
        self, kind: MessageType, wanted: MessageType, body: bytes, deadline: Deadline
    ) -> Message:
        """Send a question and wait for its answer, or for REFUSED."""
        self._token += 1
        self._send(kind, self._token, body=body)
        self._answer = None
        while True:
            answer = self._answer
            if (
                answer is not None
                and answer.kind in (wanted, MessageType.REFUSED)
                and answer.a == self._token
            ):
                return answer
            if not self._listen(deadline.left()) and deadline.expired:
                raise Timeout(
                    f"the table's process {self._owner} has not answered in time: raise timeout_s"
                )

    def _wait(self, rows: Ids, steps: int, deadline: Deadline, warned: bool) -> bool:
        """Wait for a message of the table's process. Return whether a warning was given."""
        if not self._needs:
            self._needs = self._asked = True
            self._send(MessageType.NEED, *RowNeed.message(rows, steps, self.left, True))
        left = deadline.left()
        if self._listen(WARN_AFTER_S if left is None and not warned else left):
            return warned
        if left is None:
            if not warned:
                text = f"waiting to insert for {WARN_AFTER_S:g} s: {self._why}"
                warnings.warn(text, RuntimeWarning, stacklevel=5)
            return True
        if deadline.expired:
            self._give_up(rows, steps)
        return warned

    def _give_up(self, rows: Ids, steps: int) -> None:
        """Ask for the reason once more after the deadline, and raise Timeout unless rows and
        credits have come.
        """
        self._send(MessageType.NEED, *RowNeed.message(rows, steps, self.left, False))
        answer = Deadline(_ANSWER_S)
        self._why, before = "", self._why
        while not self._why and self._needs and not answer.expired:
            self._listen(answer.left())
        if self._needs:
            if not self._why:
                self._send(MessageType.NEED, 0, 0)
            self._needs = False
            self._give_back()
            raise Timeout(f"still cannot insert: {self._why or before}")

    # -- the socket --------------------------------------------------------------------------------

    def _try(self, kind: MessageType) -> bool:
        """Send a message that may be lost: if the table's process is gone or does not read, the
        next wait finds out.
        """
        try:
            messages.send(self._channel, kind)
        except OSError:
            return False
        return True

    def _send(
        self,
        kind: MessageType,
        a: int = 0,
        b: int = 0,
        body: bytes = b"",
        fds: tuple[int, ...] = (),
    ) -> None:
        try:
            messages.send(self._channel, kind, a, b, body, fds)
        except BlockingIOError:
            raise Broken(
                f"the table's process {self._owner} has not read {kind.name} and the messages "
                "before it"
            ) from None
        except ConnectionError:
            raise self._gone() from None

    def _listen(self, left_s: float | None) -> bool:
        """Handle messages of the table's process. Return ``False`` if none arrives in time."""
        heard = self._hear()
        if heard:
            return True
        ready = readable([self._channel.fileno(), self._owner_fd], left_s)
        if not ready:
            return False
        if not self._hear() and self._owner_fd in ready:
            raise self._gone()
        return True

    def _hear(self) -> bool:
        heard = False
        while True:
            try:
                message = messages.receive(self._channel)
            except BlockingIOError:
                return heard
            except ConnectionResetError:
                message = None
            if message is None:
                raise self._gone()
            heard = True
            self._take_in(message)

    def _take_in(self, message: Message) -> None:
        kind = message.kind
        if kind == MessageType.GRANT:
            self._extents.append((message.a, message.b))
            self.left += message.b
            self._asked = False
        elif kind == MessageType.GO:
            self._needs = False
        elif kind == MessageType.WHY:
            self._why = message.body.decode(errors="replace")
        elif kind == MessageType.CLOSED:
            raise self._shut()
        else:
            self._answer = message

    def _shut(self) -> AsyncLoaderError:
        if self._ring.state() == ring_format.HAS_FAILED:
            return Broken(
                f"the thread that serves writers has failed in the table's process {self._owner}: "
                "see its log"
            )
        return Closed(
            f"the replay buffer was closed by its process {self._owner}: nothing can be added any "
            "more"
        )

    def _gone(self) -> AsyncLoaderError:
        if self._ring.state() == ring_format.OPEN:
            readable([self._owner_fd], _DYING_S)
            return Broken(
                f"process {self._owner}, which had the replay buffer, has died: nothing can be "
                "added any more"
            )
        return self._shut()

    def close(self) -> None:
        self._channel.close()
        close_all((self._owner_fd,))
