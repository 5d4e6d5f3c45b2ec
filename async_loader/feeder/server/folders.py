"""Where tables are saved: within the folder that the configuration names.

A client names a folder relative to that of its table, which is ``FOLDER/TABLE``: two tables never
share one.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from async_loader.errors import ConfigError, Unsupported
from async_loader.validation import path_of

REMEDY = (
    "start the server with checkpoint: {path: FOLDER} in its configuration, or with --checkpoint "
    "FOLDER"
)


class Folders:
    """The folder of each table.

    Parameters
    ----------
    root : str or path, optional
        Without it, tables are neither saved nor loaded.
    private : bool
        The server is one script's own: its clients may name any folder.
    """

    def __init__(self, root: str | os.PathLike[str] | None, private: bool = False) -> None:
        self._root = None if root is None else Path(root).expanduser().absolute()
        self._private = private

    def of(self, table: str, path: str) -> Path:
        """Return the folder that a client names.

        Raises
        ------
        Unsupported
            There is no folder for checkpoints.
        ConfigError
            The path is empty, or leaves the table's folder, also through a link.
        """
        path = path_of("path", path)
        if self._private:
            return Path(path).absolute()
        if self._root is None:
            raise Unsupported(
                f"this feeder keeps no checkpoints, so table {table!r} is neither saved nor "
                f"loaded: {REMEDY}"
            )
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or "\\" in path:
            raise ConfigError(
                f"path={path[:300]!r} leaves the folder of table {table!r}: name one in it, as in "
                "'before-tuning'"
            )
        home = self._root / _as_file(table)
        found = home.joinpath(*parts)
        inside = Path(os.path.realpath(found))
        if not inside.is_relative_to(os.path.realpath(self._root)) or not inside.is_relative_to(
            os.path.realpath(home)
        ):
            raise ConfigError(
                f"path={path[:300]!r} leaves the folder of table {table!r} through a link: name "
                "one in it"
            )
        if Path(os.path.realpath(home)) != Path(os.path.realpath(self._root)) / _as_file(table):
            raise ConfigError(
                f"the folder of table {table!r} is a link out of the folder for checkpoints: "
                "remove the link"
            )
        return found


def _as_file(name: str) -> str:
    """Return a table's name as a file name: unique, and short enough."""
    quoted = quote(name, safe=" ()[]{}@+,=")
    quoted = quoted.replace(".", "%2E") if quoted.startswith(".") else quoted
    if len(quoted) <= 200:
        return quoted
    import hashlib

    return f"{quoted[:150]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
