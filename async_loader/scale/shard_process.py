"""A shard's feeder as its actor has it: started, taken over, watched, ended. Without Ray.

::

    FOLDER/CLUSTER/shard-0/     0700, on the shard's node
      feeder, feeder.insert...  its sockets, where it listens on ipc
      owner                     see NOTE [owners] in shard_main.py
      number                    of its newest incarnation
      address                   where it listened last; a restart listens there again
      keys/                     its CURVE keys, 0600
      log                       of the newest processes
      saves/TABLE/rows          counts of rows, see row_counts.py
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from async_loader.errors import AsyncLoaderError, Broken, Timeout
from async_loader.feeder import addresses
from async_loader.feeder.settings import SecuritySettings, ServerSettings
from async_loader.lifecycle import Deadline, readable
from async_loader.scale.shard_main import OWNER
from async_loader.scale.shard_plan import ShardPlan, encoded

_ANSWER_S = 10.0
_LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class About:
    """What a shard's process says of itself.

    Attributes
    ----------
    incarnation, pid : int
    address : str
    restored : dict
        By table: ``rows`` that it began with, of save ``save``, and ``lost`` ones, in sum over all
        processes.
    """

    incarnation: int
    pid: int
    address: str
    restored: dict[str, dict[str, Any]]


class ShardProcess:
    """The process, ready for clients when the constructor returns. One that runs is taken over.

    Parameters
    ----------
    plan : ShardPlan
    host : str
        Address of this node, for ``listen="node"``.

    Raises
    ------
    Broken
        It ended before it was ready; the message has the end of its log.
    Timeout
    ConfigError
    """

    def __init__(self, plan: ShardPlan, host: str) -> None:
        self._plan, self._host = plan, host
        self._folder = plan.place()
        self._owner = self._take_over()
        if self._owner is None:
            self._start()
            self._owner = self._take_over()
        if self._owner is None:
            raise Broken(f"{plan.name} ended as soon as it was ready: {self._last_words()}")
        self.about = self._read()
        self._pidfd = os.pidfd_open(self.about.pid)

    # -- starting --------------------------------------------------------------------------------

    def _take_over(self) -> socket.socket | None:
        """Connect to the process that runs in the folder; ``None`` if none does."""
        owner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        owner.settimeout(_ANSWER_S)
        try:
            owner.connect(str(self._folder / OWNER))
        except (ConnectionError, FileNotFoundError):
            owner.close()
            return None
        return owner

    def _read(self) -> About:
        assert self._owner is not None
        try:
            with self._owner.makefile("rb") as lines:
                said = json.loads(lines.readline())
        except (OSError, ValueError) as error:
            self._owner.close()
            raise Broken(f"{self._plan.name} does not say what it is: {error}") from None
        return About(said["incarnation"], said["pid"], said["address"], said["restored"])

    def _start(self) -> None:
        number = self._next_number()
        settings = self._bound(self._plan.settings())
        ready, told = os.pipe()
        log = self._log()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "async_loader.scale.shard_main", str(self._folder),
                 str(told)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(told,),
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(told)
            os.close(log)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                head = json.dumps({"incarnation": number}).encode() + b"\n"
                process.stdin.write(head + encoded(settings))
                process.stdin.close()
            self._wait_ready(process, ready)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            os.close(ready)
        self._process = process

    def _wait_ready(self, process: subprocess.Popen[bytes], ready: int) -> None:
        if not readable([ready], self._plan.start_s):
            raise Timeout(
                f"{self._plan.name} was not ready after {self._plan.start_s:g} s: "
                f"{self._last_words() or 'its log is empty'}"
            )
        if not os.read(ready, 1):  # it has ended
            code = process.wait()
            raise Broken(
                f"{self._plan.name} ended with exit code {code} before it was ready: "
                f"{self._last_words()}"
            )

    def _next_number(self) -> int:
        """Return the number of the next incarnation: above all earlier ones, on any node."""
        path = self._folder / "number"
        number = int(time.time())  # the folder of another node may have seen later ones
        with contextlib.suppress(FileNotFoundError, ValueError):
            number = max(number, int(path.read_text()) + 1)
        temporary = path.with_suffix(".new")
        temporary.write_text(str(number))
        temporary.rename(path)
        return number

    def _bound(self, settings: ServerSettings) -> ServerSettings:
        plan, security = self._plan, SecuritySettings(allow_insecure=self._plan.allow_insecure)
        if plan.secrets is not None:
            folder = self._folder / "keys"
            for name, content in plan.secrets.files.items():
                _write_secret(folder / name, content)
            security = SecuritySettings(keys=str(folder))
        return replace(settings, bind=self._bind(), security=security)

    def _bind(self) -> str:
        if self._plan.listen == "ipc":
            return str(addresses.parse(f"ipc://{self._folder / 'feeder'}"))
        host = "127.0.0.1" if self._plan.listen == "loopback" else self._host
        host = f"[{host}]" if ":" in host else host
        with contextlib.suppress(OSError, AsyncLoaderError):
            before = addresses.parse((self._folder / "address").read_text())
            if f"tcp://{host}:" in str(before) and _free(before):
                return str(before)
        return f"tcp://{host}:*"

    def _log(self) -> int:
        path = self._folder / "log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > _LOG_BYTES:
                path.rename(path.with_suffix(".before"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text(errors="replace").strip()[-1000:]
        return ""

    # -- once it runs ----------------------------------------------------------------------------

    def keep_address(self) -> None:
        """Listen there again after a restart: clients without a directory find it."""
        (self._folder / "address").write_text(self.about.address)

    def fileno(self) -> int:
        """Return a descriptor that is readable when the process has ended."""
        return self._pidfd

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return bool(readable([self._pidfd], 0.0))

    @property
    def fate(self) -> str:
        """How it has ended; its exit code is known to the process that started it alone."""
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        code = None if process is None else process.wait()
        return f" with exit code {code}: {self._last_words()}" if code else ""

    def stop(self, timeout_s: float) -> None:
        """Let it drain and save; kill it if it has not ended by then."""
        deadline = Deadline(timeout_s)
        self._signal(signal.SIGTERM)
        if not readable([self._pidfd], deadline.left()):
            self._signal(signal.SIGKILL)
            readable([self._pidfd], _ANSWER_S)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Let go of the process: it ends by itself, unless it is taken over."""
        assert self._owner is not None
        self._owner.close()
        os.close(self._pidfd)
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.returncode = 0  # no warning: it is meant to outlive this object


def _free(address: addresses.Address) -> bool:
    """Whether the three ports of an address can be bound now."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        for port in range(address.port, address.port + 3):
            one = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((address.host, port))
            except OSError:
                return False
    return True


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file of this user, which no other user can read at any time."""
    for folder in (path.parent.parent, path.parent):
        if folder.name in ("keys", "clients"):
            addresses.private_folder(folder)
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    temporary.rename(path)
