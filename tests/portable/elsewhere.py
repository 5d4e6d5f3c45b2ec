"""Takes the interfaces of Linux away from this process: imported first, it is another system.

``LIKE`` in the environment says which: "macos" or "windows".
"""

from __future__ import annotations

import builtins
import errno
import mmap
import os
import select
import signal
import socket
import sys
from importlib.abc import MetaPathFinder
from typing import Any

LIKE = os.environ["LIKE"]
LINUX = {
    os: "memfd_create eventfd eventfd_write eventfd_read pidfd_open posix_fallocate O_TMPFILE "
    "MFD_CLOEXEC MFD_ALLOW_SEALING EFD_CLOEXEC EFD_NONBLOCK sched_getaffinity",
    socket: "SOCK_SEQPACKET SOCK_NONBLOCK SOCK_CLOEXEC MSG_CMSG_CLOEXEC SO_PEERCRED",
    mmap: "MADV_HUGEPAGE MADV_DONTDUMP",
    select: "epoll",
}
POSIX = {
    os: "fork register_at_fork getuid geteuid statvfs O_CLOEXEC O_NOFOLLOW O_DIRECTORY fchmod",
    socket: "AF_UNIX send_fds recv_fds CMSG_SPACE",
    mmap: "MAP_PRIVATE MAP_SHARED MAP_ANONYMOUS PROT_READ PROT_WRITE",
    select: "poll",
    signal: "pthread_sigmask SIGKILL SIGSTOP SIGQUIT SIGHUP SIGALRM SIGUSR1 SIGUSR2 SIGXCPU "
    "SIGVTALRM SIGPROF siginterrupt",
}
_FOLDERS = ("/proc", "/dev/shm", "/sys")


class _Missing(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in ("fcntl", "resource", "termios", "pwd", "grp", "_posixshmem"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _refuse(function: Any) -> Any:
    def call(path: Any, *rest: Any, **more: Any) -> Any:
        if str(path).startswith(_FOLDERS):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return function(path, *rest, **more)

    return call


def _take_away(names: dict[Any, str]) -> None:
    for module, some in names.items():
        for name in some.split():
            if hasattr(module, name):
                delattr(module, name)


def _pair(*_: object) -> tuple[socket.socket, socket.socket]:
    """As on Windows: two sockets of the network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


# other libraries keep what they have, and do not look for parts of the other system
import subprocess  # noqa: E402, F401

import numba  # noqa: E402, F401
import torch.utils.data  # noqa: E402, F401
import zmq.utils.monitor  # noqa: E402, F401

_take_away(LINUX)
if LIKE == "windows":
    _take_away(POSIX)
    sys.meta_path.insert(0, _Missing())
    for _name in ("fcntl", "resource"):
        sys.modules.pop(_name, None)
    socket.socketpair = _pair
builtins.open, os.open, os.stat = _refuse(open), _refuse(os.open), _refuse(os.stat)
sys.platform = {"macos": "darwin", "windows": "win32"}[LIKE]
