"""The worker processes and the thread that leads them: hands out chunks, gathers results, sees
deaths, replaces.

Every wait is one poll over the workers' channels, their pidfds and the end flag.

# NOTE [who sends]
Beside a learner that keeps the GIL busy, each system call of a helper thread can cost it five
milliseconds. So the producer does not wake the pool's thread to have a chunk sent: it sends the
chunk itself, under the pool's lock, to a worker that has room. The thread sends what is left when a
worker becomes free. Neither takes the lock while it waits.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Any

from async_loader.errors import AsyncLoaderError, Broken, WorkerDied
from async_loader.lifecycle import Deadline, EndFlag, join, readable
from async_loader.name_hints import describe
from async_loader.pipeline.batch import Failure, StreamEnd
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.job_queue import Chunk, JobQueue
from async_loader.pipeline.workers.failures import from_report, guarded
from async_loader.pipeline.workers.work import WorkerConfig
from async_loader.pipeline.workers.worker_handle import WorkerHandle, unguarded
from async_loader.process_hooks import SignalsDeferred
from async_loader.shm.fd_channel import Record
from async_loader.stats import Meter, StageStats
from async_loader.validation import require_linux

_GRACE_S = 0.5
"""How long workers may finish what they are doing once the end flag is up, before they are killed.
"""
_START_S = 10.0
"""How long a worker that replaces another may take to run its first line. A fork beside other
threads copies whatever locks they hold, such as that of the dynamic linker while one of them
imports a library, and then hangs: another try helps."""
_MAX_STILLBIRTHS = 3
"""Workers in a row that are killed before they are ready.

One that ends by itself will do so again: that is enough.
"""

log = logging.getLogger("async_loader")


class WorkerPool:
    """``size`` worker processes.

    Parameters
    ----------
    config : callable
        Returns the config of worker number n.
    assembler : ChunkAssembler
    on_broken : callable
        Told when the pool cannot go on.
    """

    def __init__(
        self,
        size: int,
        context: BaseContext,
        end: EndFlag,
        assembler: ChunkAssembler,
        config: Callable[[int], WorkerConfig],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._size = size
        self.meter = Meter()
        self.replaced = 0
        self.busy_s = 0.0
        self._context = context
        self._end = end
        require_linux("a loader with worker processes")
        self.jobs = JobQueue()
        self._assembler = assembler
        self._config = config
        self._on_broken = on_broken
        self._stillbirths = 0
        self._lock = threading.Lock()
        self.handles: list[WorkerHandle] = []
        self._parent_fd = -1
        self._thread = threading.Thread(
            target=self._run, name="async-loader-worker-pool", daemon=True
        )

    def spawn_workers(self) -> None:
        """Start the processes, from the calling thread."""
        with SignalsDeferred():
            self._parent_fd = os.pidfd_open(os.getpid())
        for number in range(self._size):
            self._spawn_worker(number)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, chunks: Sequence[Chunk]) -> None:
        """Send the chunks of one job to the workers that are free first; see NOTE [who sends]."""
        with SignalsDeferred(), self._lock:  # whether a worker has a chunk must be known
            self.jobs.extend(chunks)
            self._dispatch()

    def join(self, timeout_s: float | None) -> bool:
        """Wait until everything is gone; whether it is.

        Workers are killed when half of the time is over.
        """
        if self._thread.ident is None:  # the start failed
            self._end.set()
            self._shut_down(0.0)
            return True
        deadline = Deadline(timeout_s)
        if not join(self._thread, None if timeout_s is None else timeout_s / 2):
            self.kill()
        return join(self._thread, deadline.left())

    def kill(self) -> None:
        """End all workers now. Any thread; the pool's own thread reaps them."""
        for handle in list(self.handles):
            handle.kill()

    def forget(self) -> None:
        """In a forked child: close what belongs to the parent, touch nothing else."""
        for handle in self.handles:
            handle.forget()
        self._close_parent_fd()

    def _close_parent_fd(self) -> None:
        fd, self._parent_fd = self._parent_fd, -1
        if fd >= 0:
            os.close(fd)

    def stage(self, depth: int) -> StageStats:
        """What the workers have done, with seconds summed over them."""
        m, busy = self.meter, self.busy_s
        return StageStats(
            m.batches, m.waits, busy, max(0.0, (m.busy_s + m.wait_s) * self._size - busy), depth
        )

    def waiting_for(self) -> str | None:
        """The worker that holds the oldest chunk, in words."""
        held = [
            (chunk.job.seq, chunk.start, h, chunk)
            for h in list(self.handles)
            for chunk in list(h.assigned.values())[:1]
        ]
        if not held:
            return None
        _, _, handle, chunk = min(held, key=lambda item: item[:2])
        return f"{handle} is at work on {_what(chunk)}"

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        grace_s = _GRACE_S
        try:
            while not self._end.is_set():
                self._serve()
        except BaseException as error:  # the top of a thread: forward, never die silently
            grace_s = 0.0
            self._on_broken(
                error if isinstance(error, Broken) else Broken(f"the worker pool failed: {error!r}")
            )
        finally:
            self._shut_down(grace_s)

    def _serve(self) -> None:
        poll, handles = select.poll(), list(self.handles)
        poll.register(self._end.fileno(), select.POLLIN)
        for handle in handles:
            poll.register(handle.death_fd, select.POLLIN)
            if handle.open:
                wanted = select.POLLIN | select.POLLOUT if handle.full else select.POLLIN
                poll.register(handle.channel.fileno(), wanted)
        self.meter.wait()
        ready = {fd for fd, _ in poll.poll(self._patience_ms())}
        self.meter.work()
        with self._lock:
            for handle in handles:
                if handle.open and handle.channel.fileno() in ready:
                    handle.full = False
                    # one record: if there are more, the next poll says so, for one call less
                    self._read(handle)
                if handle.death_fd in ready:
                    self._reap(handle)
            self._dispatch()

    def _patience_ms(self) -> float | None:
        """Until the next worker must have shown itself. See `_START_S`."""
        waits = []
        for handle in self.handles:
            left = None if handle.start_deadline is None else handle.start_deadline.left()
            if left == 0.0:
                handle.start_deadline = None
                handle.kill()
            elif left is not None:
                waits.append(left)
        return 1000 * min(waits) + 1 if waits else None

    def _dispatch(self) -> None:
        while not self._end.is_set():
            roomy = sorted((h for h in self.handles if h.has_room), key=lambda h: len(h.assigned))
            for handle in roomy:
                chunk = self.jobs.take(handle.number)
                if chunk is not None:
                    self._send(handle, chunk)
                    break
            else:
                return

    def _send(self, handle: WorkerHandle, chunk: Chunk) -> None:
        number, lost = handle.number, chunk.spec.lost
        if chunk.spec.stream and number in lost:
            # a new worker would begin the stream of the one that died anew
            error, lost[number] = lost[number], None
            chunk.job.finish(StreamEnd(number) if error is None else Failure(error, urgent=True))
            return
        try:
            handle.send(chunk)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            # It died, as its pidfd will say in a moment, or it does not read. Either way this chunk
            # was never begun.
            handle.assigned.pop(id(chunk), None)
            handle.full = True
            self.jobs.appendleft(chunk)
        except (AsyncLoaderError, OSError) as error:
            # no memory for the payload, too many descriptors: this batch's failure
            handle.assigned.pop(id(chunk), None)
            chunk.job.finish(Failure(error))

    # -- results -----------------------------------------------------------------------------------

    def _read(self, handle: WorkerHandle) -> bool:
        """Take one record in; whether there may be another."""
        try:
            record = handle.channel.receive()
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # it ended with unread records; the error comes once, before what it had sent, and then
            # the end does
            return True
        if record is None:
            handle.open = False
            return False
        self._receive(handle, record)
        return True

    def _receive(self, handle: WorkerHandle, record: Record) -> None:
        kind = record.message[0]
        if kind == "started":
            handle.start_deadline = None
            return
        if kind == "ready":
            handle.ready = True
            self._stillbirths = 0
            return
        if kind == "unfit":
            _, what = record.message
            error = from_report(record.payload, f"{handle}, {what}")
            raise Broken(f"{handle} could not start: {what} failed: {error!r}") from error
        _, number, busy_s, where = record.message
        chunk = handle.assigned.pop(number, None)
        self.busy_s += busy_s
        if chunk is None or chunk.job.over:
            return
        if kind == "error":
            error = from_report(record.payload, f"{handle}, {_what(chunk)}")
            chunk.job.finish(Failure(error))
        else:
            try:
                self._complete(chunk, kind, handle.number, record, where)
            except Exception as error:  # loading runs the code of whatever the job returned
                error.add_note(f"raised while loading what {handle} returned for {_what(chunk)}")
                chunk.job.finish(Failure(guarded(error)))

    def _complete(
        self, chunk: Chunk, kind: str, worker: int, record: Record, where: tuple[Any, ...] | None
    ) -> None:
        job, value = chunk.job, None
        if kind == "end":
            value = worker
        elif kind != "wrote":
            value = self._assembler.load(chunk, record, where)
        job.results[chunk.number] = (kind, value)
        if len(job.results) == job.chunks:
            outcome = self._assembler.assemble(job)
            # else the slot would stay taken until this thread is through with the job
            job.buffer = None
            self.meter.batches += 1  # before the batch can be taken, and the count be read
            job.finish(outcome)

    # -- births and deaths -------------------------------------------------------------------------

    def _spawn_worker(self, number: int) -> None:
        config = self._config(number)
        # from the start of a process until it is known, and its descriptors
        with SignalsDeferred():
            handle = WorkerHandle(number, self._context)
            self.handles[number : number + 1] = [handle]
            # the handle does not keep the config: see NOTE [what leads back to the engine]
            handle.start(config, self._end, self._parent_fd)

    def _reap(self, handle: WorkerHandle) -> None:
        """A worker died: its first chunk is lost and says so, the rest goes to others, and a new
        one takes its place.
        """
        while handle.open and self._read(handle):
            continue
        specs = [spec for spec, _ in handle.iterations.values() if spec.stream]
        exitcode = handle.reap()
        if self._end.is_set():
            return
        held, *unbegun = handle.assigned.values() or [None]
        for chunk in reversed(unbegun):
            if chunk is not None:
                self.jobs.appendleft(chunk)
        handle.assigned.clear()
        if not handle.ready:
            self._check_started(handle, exitcode)
        elif held is not None:
            text = (
                f"{handle} {how(exitcode)} while it was at work on {_what(held)}; it has been "
                "replaced"
            )
            held.job.finish(Failure(WorkerDied(text, handle.pid, exitcode), urgent=True))
        for spec in specs if handle.ready else ():  # before it was ready no stream had begun
            text = (
                f"{handle} {how(exitcode)} and the rest of its stream is lost; it has been replaced"
            )
            told = held is not None and held.spec is spec
            spec.lost.setdefault(
                handle.number, None if told else WorkerDied(text, handle.pid, exitcode)
            )
        if held is not None and not held.job.over:
            self.jobs.appendleft(held)
        # a kept record must not keep the handle
        log.warning("%s %s; starting another", str(handle), how(exitcode))
        self.replaced += 1
        self._spawn_worker(handle.number)
        if self._context.get_start_method() == "fork":
            self.handles[handle.number].start_deadline = Deadline(_START_S)

    def _check_started(self, handle: WorkerHandle, exitcode: int | None) -> None:
        self._stillbirths += 1
        killed = exitcode is None or exitcode < 0
        if killed and self._stillbirths < _MAX_STILLBIRTHS:
            return
        times = f", and so did {self._stillbirths - 1} before it" if self._stillbirths > 1 else ""
        hint = "" if killed else unguarded(self._context.get_start_method())
        raise Broken(f"{handle} {how(exitcode)} before it was ready{times}{hint}")

    def _shut_down(self, grace_s: float) -> None:
        """Let the workers see the end flag, then end the ones that do not, and reap them all."""
        self.jobs.clear()
        alive = {h.death_fd: h for h in self.handles if h.alive}
        deadline = Deadline(grace_s)
        while alive and not deadline.expired:
            for fd in readable(alive, deadline.left()):
                del alive[fd]
        for handle in alive.values():
            handle.kill()
        for handle in self.handles:
            handle.reap()
            handle.close()
            handle.assigned.clear()  # they can write no more: the slots go back
        self._close_parent_fd()


def _what(chunk: Chunk) -> str:
    if chunk.kind in ("work", "stream"):
        return f"batch {chunk.job.seq}"
    rows = f"rows {chunk.start} to {chunk.stop} of batch {chunk.job.seq}"
    return rows if not chunk.task else f"{rows}, beginning with {describe(chunk.task[0])}"


def how(exitcode: int | None) -> str:
    """An exit code in words."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    import signal

    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"
