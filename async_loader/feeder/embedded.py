"""A feeder for one script: a child process at a private address, which ends with its parent.

# NOTE [ending with the parent]
The child waits on a pidfd of its parent: another child could hold the other end of a pipe, and the
parent's pid may be reused by the time it is read. Signals to the whole job are meant for the
parent, which closes everything in order, by an end flag: see `process_hooks.drop_signals`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from async_loader.errors import AsyncLoaderError, Broken, ConfigError, OutOfMemory, Timeout
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.settings_reader import settings_of
from async_loader.lifecycle import LONGEST_S, Deadline, EndFlag, readable, seconds
from async_loader.process_hooks import drop_signals, end_process, signals_blocked, tell_ready

if TYPE_CHECKING:
    from async_loader.feeder.serving import FeederProcess

_LAST_WORDS_S = 15.0  # a server that was told to stop is killed after this
_REFUSALS: dict[int, type[AsyncLoaderError]] = {78: ConfigError, 79: OutOfMemory}
"""By exit code: why a feeder of these settings cannot start. Its log says more."""


class Embedded:
    """A feeder, running when the constructor returns.

    Parameters
    ----------
    settings : ServerSettings
        Its ``bind`` is ignored.
    timeout_s : float
        How long it may take to start. Where no kernels are kept, that includes compiling them:
        minutes on a busy machine.

    Raises
    ------
    Broken
        If it ended before it was ready; the message has the end of its log.
    Timeout
    """

    def __init__(self, settings: ServerSettings, timeout_s: float = 300.0) -> None:
        self._folder = tempfile.mkdtemp(prefix="async-loader-")  # 0700
        self.address = f"ipc://{self._folder}/feeder"
        bound = msgspec.structs.replace(settings, bind=self.address)
        parent, (ready, told), end = os.pidfd_open(os.getpid()), os.pipe(), EndFlag()
        log = open(Path(self._folder) / "log", "w+b")  # noqa: SIM115 - read when it dies
        fds = (parent, end.fileno(), told)
        try:
            with signals_blocked():
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "async_loader.feeder.embedded", *map(str, fds)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=fds,
                    start_new_session=True,
                )
        except BaseException:
            end.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            os.close(parent)
            os.close(told)
            log.close()
        self._finalizer = weakref.finalize(
            self, _end, self._process, end, self._folder, os.getpid(), 10.0
        )
        self._end = end
        try:
            self._begin(bound, ready, timeout_s)
        except BaseException:
            with contextlib.suppress(Broken):
                self.close()
            raise
        finally:
            os.close(ready)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _begin(self, settings: ServerSettings, ready: int, timeout_s: float) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.msgpack.encode(settings))
            self._process.stdin.close()
        deadline, child = Deadline(timeout_s), os.pidfd_open(self._process.pid)
        try:
            seen = readable([ready, child], deadline.left())
            if ready in seen and os.read(ready, 1):
                return
            if seen:
                refused = _REFUSALS.get(self._process.wait())
                if refused is not None:
                    raise refused(self._last_words())
                raise Broken(
                    f"the embedded feeder ended with exit code {self._process.returncode}: "
                    f"{self._last_words()}"
                )
            raise Timeout(
                f"the embedded feeder was not ready after {timeout_s:g} s: "
                f"{self._last_words() or 'its log is empty'}"
            )
        finally:
            os.close(child)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return (Path(self._folder) / "log").read_text(errors="replace").strip()[-1000:]
        return ""

    def fate(self) -> Broken | None:
        """Return the error for clients if the feeder has ended by itself."""
        if self._process.poll() is None:
            return None
        how = (
            f"the embedded feeder (pid {self.pid}) has ended with exit code "
            f"{self._process.poll()}, and its tables with it"
        )
        said = f" (it said: {words})" if (words := self._last_words()) else ""
        return Broken(
            f"{how}{said}: connect('embedded') starts another; `async-loader serve` starts one "
            "that outlives its clients"
        )

    def close(self, timeout_s: float = 10.0) -> None:
        """Let it drain, and kill it if it does not end. May be called again.

        Raises
        ------
        Broken
            If it has failed at its end: tables were not saved.
        """
        limit = min(seconds("timeout_s", timeout_s), LONGEST_S)
        if self._finalizer.alive:
            _stop(self._process, self._end, os.getpid(), limit)
            failed = self._process.returncode == 1
            said = self._last_words() if failed else ""
            shutil.rmtree(self._folder, ignore_errors=True)
            self._finalizer.detach()  # last: a call that was interrupted may be made again
            if failed:
                raise Broken(f"the embedded feeder ended with exit code 1: {said}")


def _end(
    process: subprocess.Popen[bytes], end: EndFlag, folder: str, pid: int, timeout_s: float
) -> None:
    _stop(process, end, pid, timeout_s)
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _stop(process: subprocess.Popen[bytes], end: EndFlag, pid: int, timeout_s: float) -> None:
    if os.getpid() != pid:
        process.returncode = 0  # in a fork it is not a child, so there is nothing to wait for
        return
    if process.stdin is not None:
        process.stdin.close()
    end.set()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end.close()


# -- in the child ----------------------------------------------------------------------------------


def main(parent: int, end: int, told: int) -> int:
    """Serve until the end flag is raised, or the parent ends.

    ``parent`` is a pidfd; ``told`` is written to when clients may connect.
    """
    from async_loader.feeder.serving import FeederProcess

    settings = settings_of(msgspec.msgpack.decode(sys.stdin.buffer.read()), ServerSettings)
    try:
        try:
            server = FeederProcess(settings, private=True)
        except tuple(_REFUSALS.values()) as error:
            sys.stderr.write(str(error))
            return next(code for code, kind in _REFUSALS.items() if isinstance(error, kind))
        threading.Thread(
            target=_follow, args=(parent, end, server), name="async-loader-parent", daemon=True
        ).start()
        return server.run(ready=partial(_ready, told))
    finally:
        if readable([parent], 0):  # the parent cannot do it any more
            assert settings.bind is not None
            shutil.rmtree(os.path.dirname(settings.bind.removeprefix("ipc://")), ignore_errors=True)


def _ready(told: int) -> None:
    drop_signals(signal.valid_signals())  # in place of the handlers that end a server
    tell_ready(told)


def _follow(parent: int, end: int, server: FeederProcess) -> None:
    readable([parent, end], None)
    server.stop()
    readable([parent], None)
    threading.Event().wait(_LAST_WORDS_S)
    os._exit(70)


if __name__ == "__main__":
    end_process(main(*map(int, sys.argv[1:])))
