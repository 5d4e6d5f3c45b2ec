"""The CURVE keys of a cluster: one pair of the server and of each role for each shard.

::

    KEYS/                      0700
      servers/shard-0/         what goes to the shard's node: server.secret, clients/ROLE.key
      actor/shard-0.secret     for clients in the role "actor": copy this folder to their hosts
      learner/shard-0.secret
      operator/shard-0.secret
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from async_loader.errors import ConfigError
from async_loader.feeder.addresses import private_folder
from async_loader.feeder.curve_keys import SERVER, load_server_keys, make_keys

SERVERS = "servers"
_OPERATOR = "operator.secret"


def keys_for(folder: Path, shard: str, roles: Sequence[str]) -> dict[str, bytes]:
    """Make the keys of a shard, unless they are there; return what goes to its node.

    Raises
    ------
    ConfigError
        If a folder can be entered by others, or has keys of other roles.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    servers = private_folder(private_folder(folder) / SERVERS)
    home = servers / shard
    if not home.exists():
        _make(folder, servers, shard, roles)
    have = set(load_server_keys(home).clients.values())
    if have != set(roles):
        raise ConfigError(
            f"{home} has keys of {sorted(have)}, and network.roles are {sorted(roles)}: name "
            "another folder in network.keys, or these roles"
        )
    files = {
        f"{SERVER}.secret": (home / f"{SERVER}.secret").read_bytes(),
        _OPERATOR: (folder / "operator" / f"{shard}.secret").read_bytes(),
    }
    files.update(
        {f"clients/{path.name}": path.read_bytes() for path in (home / "clients").iterdir()}
    )
    return files


def _make(folder: Path, servers: Path, shard: str, roles: Sequence[str]) -> None:
    """Make the keys in a folder of another name, and rename it last: a kill leaves no half."""
    temporary = servers / f"{shard}.new"
    shutil.rmtree(temporary, ignore_errors=True)
    make_keys(private_folder(temporary), roles)
    for role in roles:
        os.replace(temporary / f"{role}.secret", private_folder(folder / role) / f"{shard}.secret")
    temporary.rename(servers / shard)
