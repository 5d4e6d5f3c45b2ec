"""Forks a process for each script, with torch and more imported already: that takes longer than
most of these tests.

The other half is `Zygote`, in the tests' process. A script is the main module of its process, as if
it had been started by itself, and ends as an interpreter does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path


class Zygote:
    """Starts scripts and learns how they ended. Any thread; of several that wait, one reads for
    all.

    Parameters
    ----------
    modules : str
        Imported before the first script is forked. They may lie in `folders`.
    options : str
        Of the interpreter.
    """

    def __init__(self, *modules: str, folders: tuple[str, ...] = (), options: tuple[str, ...] = ()):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            wanted = json.dumps([*(modules or ("torch", "async_loader.async_data_loader"))])
            command = [sys.executable, *options, __file__, str(theirs.fileno()), wanted, *folders]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._started: list[int] = []
        self._ended: dict[int, int] = {}
        self._news, self._starting = threading.Condition(), threading.Lock()
        self._reading = False

    def start(self, path: str, args: tuple[str, ...], tmp: str) -> Started:
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        request = json.dumps([path, *args, tmp]).encode()
        with self._starting:
            socket.send_fds(self._socket, [request], [out_end, err_end])
            os.close(out_end)
            os.close(err_end)
            self._until(lambda: bool(self._started), None)
            return Started(self, self._started.pop(), out, err)

    def run(self, script: Path, *args: str, limit_s: float = 200.0) -> tuple[int, str, str]:
        """Run a script to its end; return its exit code and what it wrote to stdout and stderr."""
        with tempfile.TemporaryDirectory(prefix="al-") as tmp:  # paths of sockets are short
            started = self.start(str(script), args, tmp)
            try:
                out, errors = started.communicate(limit_s)
            finally:
                started.kill()
                started.stdout.close()
                started.stderr.close()
            return started.wait(), out.decode(), errors.decode()

    def status(self, pid: int, left_s: float | None) -> int | None:
        """How the process ended, as in subprocess; ``None`` if it has not within that time."""
        self._until(lambda: pid in self._ended, left_s)
        return self._ended.get(pid)

    def _until(self, seen, left_s: float | None) -> None:
        """Return when it was seen, or the time is over."""
        deadline, left = None if left_s is None else time.monotonic() + left_s, left_s
        with self._news:
            while not seen():
                over = not (self._news.wait(left) if self._reading else self._read(left))
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if over and left == 0:
                    return

    def _read(self, left_s: float | None) -> bool:
        """Take one message, with the lock released while waiting; return whether one came within
        the time.
        """
        self._reading, message = True, b""
        self._news.release()
        try:
            if ready := select.select([self._socket], [], [], left_s)[0]:
                message = self._socket.recv(4096)
        finally:
            self._news.acquire()
            self._reading = False
            self._news.notify_all()
        if ready:
            kind, pid, status = json.loads(message)
            if kind == "ended":
                self._ended[pid] = status
            else:
                self._started.append(pid)
        return bool(ready)

    def close(self):
        self._socket.close()
        self._process.wait()


class Started:
    """What the tests use of subprocess.Popen, for a process that is the zygote's child."""

    def __init__(self, zygote: Zygote, pid: int, out: int, err: int):
        self.pid = pid
        self.stdout, self.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
        self._zygote = zygote

    @property
    def returncode(self) -> int | None:
        return self._zygote.status(self.pid, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._zygote.status(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired("script", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + timeout
        found = {self.stdout: b"", self.stderr: b""}
        with selectors.DefaultSelector() as selector:
            for stream in found:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                events = selector.select(deadline - time.monotonic())
                if not events and time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("script", timeout)
                for key, _ in events:
                    data = os.read(key.fd, 65536)
                    found[key.fileobj] += data
                    if not data:
                        selector.unregister(key.fileobj)
        self.wait(max(0.0, deadline - time.monotonic()))
        return found[self.stdout], found[self.stderr]


# -- the zygote's own process ----------------------------------------------------------------------


def serve(channel: socket.socket, modules: list[str], folders: list[str]) -> None:
    """Until the tests end; returns in each script's process, too, when the script is over."""
    sys.path += folders
    for name in modules:
        importlib.import_module(name)
    children: dict[int, int] = {}
    while True:
        for fd in select.select([channel, *children], [], [])[0]:
            if fd in children:
                pid = children.pop(fd)
                os.close(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                channel.send(json.dumps(["ended", pid, code]).encode())
                continue
            request, fds, _, _ = socket.recv_fds(channel, 65536, 2)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                for other in (channel.detach(), *children):
                    os.close(other)
                become(json.loads(request), fds)
                return
            for other in fds:
                os.close(other)
            children[os.pidfd_open(pid)] = pid
            channel.send(json.dumps(["started", pid, 0]).encode())


def become(request: list[str], fds: list[int]) -> None:
    """This process is now the script's."""
    *argv, os.environ["TMPDIR"] = request
    os.chdir(request[-1])
    tempfile.tempdir = None
    os.setsid()
    for fd, number in zip(fds, (1, 2), strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.argv = argv
    sys.path[0] = os.path.dirname(argv[0])
    module = types.ModuleType("__main__")
    module.__file__ = argv[0]
    sys.modules["__main__"] = module
    with open(argv[0]) as file:
        source = file.read()
    exec(compile(source, argv[0], "exec"), module.__dict__)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        serve(channel, json.loads(sys.argv[2]), sys.argv[3:])
