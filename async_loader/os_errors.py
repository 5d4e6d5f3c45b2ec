"""What an error of the operating system means for a command: the file, the reason, the remedy."""

from __future__ import annotations

import errno
import os

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
    errno.EAGAIN: "raise the limit of processes, ulimit -u, or start fewer",
    errno.ENOMEM: "free some memory",
}


def explain(error: OSError) -> str:
    """Return one line: the file if it is known, why it failed, and what to do."""
    names = [os.fsdecode(one) for one in (error.filename, error.filename2) if _is_path(one)]
    reason = error.strerror or str(error) or type(error).__name__
    text = ": ".join([*[" -> ".join(names)] * bool(names), " ".join(reason.split())])
    remedy = _REMEDIES.get(error.errno or 0)
    return text if remedy is None else f"{text}: {remedy}"


def _is_path(value: object) -> bool:
    return isinstance(value, str | bytes | os.PathLike)
