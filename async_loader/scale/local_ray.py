"""A Ray cluster of this machine alone, which ``cluster up`` starts if no other runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from async_loader.errors import Broken, ConfigError
from async_loader.feeder import addresses
from async_loader.lifecycle import Deadline, readable
from async_loader.scale import ray_library

_START_S = 60.0
_END_S = 30.0
_PAUSE_S = 0.3


def _state() -> Path:
    return addresses.private_folder(addresses.runtime_folder() / "clusters") / "ray.json"


def start(cpus: float) -> str:
    """Start Ray's processes, which outlive this one; return the address.

    Raises
    ------
    MissingExtra
    Broken
        They have ended at once; the message has the end of their log.
    """
    ray_library.load_ray()
    port, state = _free_port(), _state()
    log = open(state.with_name("ray.log"), "w+b")  # noqa: SIM115 - read when it dies
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
             "--disable-usage-stats", "--include-dashboard=false", f"--port={port}",
             "--node-ip-address=127.0.0.1", f"--num-cpus={max(1, int(cpus))}",
             f"--object-store-memory={80 << 20}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )  # fmt: skip
    address = f"127.0.0.1:{port}"
    state.write_text(json.dumps({"pid": process.pid, "address": address}))
    ended, deadline = os.pidfd_open(process.pid), Deadline(_START_S)
    try:
        while not readable([ended], _PAUSE_S):
            with contextlib.suppress(ConfigError):
                ray_library.join(address)
                ray_library.leave()
                process.returncode = 0  # no warning: it is meant to outlive this process
                return address
            if deadline.expired:
                break
    finally:
        os.close(ended)
    process.terminate()
    words = state.with_name("ray.log").read_text(errors="replace").strip()[-1000:]
    raise Broken(f"Ray did not start within {_START_S:g} s: {words}")


def address() -> str | None:
    """Return the address of the Ray that `start` has started, if it runs."""
    return None if _running() is None else str(json.loads(_state().read_text())["address"])


def stop() -> bool:
    """End the Ray that `start` has started; return whether there was one."""
    pid = _running()
    if pid is None:
        return False
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        if not readable([fd], _END_S):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            readable([fd], _END_S)
    finally:
        os.close(fd)
    _state().unlink(missing_ok=True)
    return True


def _running() -> int | None:
    try:
        pid = int(json.loads(_state().read_text())["pid"])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, KeyError):
        return None
    return pid if b"ray.scripts" in command else None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port
