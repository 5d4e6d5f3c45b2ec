"""What an error of the operating system means for a command: the file, the reason, the remedy."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

_REMEDIES = {
    errno.ENOSPC: "free some of the disk, or name a place on another one",
    errno.EDQUOT: "free some of your share of the disk, or name a place on another one",
    errno.EACCES: "give this user the right to it, or name another place",
    errno.EPERM: "give this user the right to it, or name another place",
    errno.EROFS: "name a place that can be written to",
    errno.ENOENT: "make the folder, or name another place",
    errno.ENOTDIR: "a part of the path is a file: name another place",
    errno.EISDIR: "it is a folder: name a file",
    errno.EEXIST: "name another place",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "raise the limit of open files, as by ulimit -n 65536",
    errno.ENFILE: "raise the machine's limit of open files, fs.file-max",
    errno.ENOMEM: "free some memory",
}


def explain(error: OSError, path: Path | None = None) -> str:
    """Return one line: the file if it is known, why it failed, and what to do.

    ``path``: of an error that names none, as those of writes.
    """
    if path is not None and error.filename is None:
        error.filename = str(path)
    names = [os.fsdecode(one) for one in (error.filename, error.filename2) if _is_path(one)]
    reason = error.strerror or str(error) or type(error).__name__
    text = ": ".join([*[" -> ".join(names)] * bool(names), " ".join(reason.split())])
    remedy = _REMEDIES.get(error.errno or 0)
    return text if remedy is None else f"{text}: {remedy}"


def check_folder(folder: Path) -> None:
    """Find out whether files can be made in a folder, which may be made with them.

    Leaves nothing behind.

    Raises
    ------
    OSError
        With the name of the folder.
    """
    there = folder
    try:
        while not os.path.lexists(there) and there != there.parent:
            there = there.parent
        with tempfile.TemporaryFile(dir=there):
            return
    except OSError as error:
        error.filename = str(folder)  # not the temporary one
        raise


def _is_path(value: object) -> bool:
    return isinstance(value, str | bytes | os.PathLike)
