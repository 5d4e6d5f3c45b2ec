"""The sockets of a client, as the kernel has them."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from async_loader.feeder import connect
from tests.waiting_rig import until

ASKED = 1 << 20
DOUBLED = 2  # by Linux, for what it keeps beside the bytes


def send_buffers(plane: str) -> list[int]:
    """Bytes that the kernel keeps of what this process sends over Unix sockets whose peer is
    bound to this plane's path.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=int(name))
            try:
                if one.family == socket.AF_UNIX and str(one.getpeername()).endswith(plane):
                    found.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
            finally:
                one.detach()  # it is not ours
    return found


def test_the_kernel_buffers_more_of_inserts_than_of_requests_while_a_feeder_is_busy() -> None:
    most = int(Path("/proc/sys/net/core/wmem_max").read_text())
    with connect("embedded", tables={"replay": 100}, timeout_s=60.0) as client:
        with client.table("replay").writer() as writer:
            writer.append(x=1.0)
        until(lambda: send_buffers("insert") == [DOUBLED * min(ASKED, most)])
        until(lambda: [one < DOUBLED * ASKED for one in send_buffers("pull")] == [True])
